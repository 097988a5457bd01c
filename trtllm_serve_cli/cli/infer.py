"""`tllm infer`: ask the model that is running."""

from __future__ import annotations

import dataclasses
import io
import json
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtllm_serve_cli.cli import output
from trtllm_serve_cli.cli.exits import INTERRUPTED, USER_CAN_FIX
from trtllm_serve_cli.cli.options import JsonOption, ModelOption
from trtllm_serve_cli.errors import BadInput, TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.client import (
        Completion,
        Endpoint,
        GenerateRequest,
        Interface,
        ModelInfo,
        Piece,
    )

_FOREIGN_MODEL = "tensorrt_llm_bls"
# How long an answer that is left early may take to its next piece, which ends it in order.
_LEAVING_S = 2.0
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclasses.dataclass(frozen=True, slots=True)
class _Target:
    """Whom to ask and how long to wait."""

    endpoint: Endpoint
    model: str
    interface: Interface
    timeout_s: float | None


def infer(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="What to ask; `-` reads it from stdin."),
    ] = None,
    model: ModelOption = None,
    interface: Annotated[
        str, typer.Option("-i", "--interface", metavar="grpc|http", help="How to ask.")
    ] = "grpc",
    url: Annotated[
        str | None,
        typer.Option(
            "-u",
            "--url",
            metavar="HOST:PORT",
            help="Another server: its gRPC address, or with -i http its HTTP address.",
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Print the text as it is generated.")
    ] = True,
    max_tokens: Annotated[int, typer.Option(min=1, help="Generate at most this many.")] = 200,
    min_tokens: Annotated[
        int | None, typer.Option(min=0, help="Do not end before this many.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Below 1 is more sober, above 1 wilder.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Choose among this many likeliest; 1 is greedy.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Choose among the likeliest of this mass.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**64 - 1, help="Same seed, same text.")
    ] = None,
    beam_width: Annotated[
        int | None, typer.Option(min=1, help="Search with this many beams; not streamed.")
    ] = None,
    num_return_sequences: Annotated[
        int | None, typer.Option(min=1, help="Give this many answers.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="End at this word; may be repeated.")
    ] = None,
    bad: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Never say this; may be repeated.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1 repeats itself less.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Above 0 prefers tokens not used yet.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Above 0 avoids tokens the more they were used.")
    ] = None,
    log_probs: Annotated[
        bool, typer.Option("--logprobs", help="Ask for log probabilities too.")
    ] = False,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Ask through the model's chat template, or with the bare prompt. "
            "Default: the template, if it has one.",
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instructions ahead of the prompt.")
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask every line: a prompt, or JSONL with prompt, max_tokens, … (`-`: stdin).",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="Give up, and cancel, after this long."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the running model, and see the answer as it comes.

    Finds the server that `tllm start` left running. Ctrl-C cancels on the server.
    A PROMPT of `-` is read from stdin. With --batch the answers are JSONL on stdout, in the
    file's order.

    Example:  tllm infer "What is ML?" --max-tokens 50 --temperature 0.7 --seed 1
    """
    _check_usage(prompt, batch, interface, chat, system)
    from trtllm_serve_cli.client import GenerateRequest

    request = GenerateRequest(
        text_input=_read_prompt(prompt) if prompt is not None else "",
        max_tokens=max_tokens,
        stream=stream and (beam_width or 1) == 1,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        beam_width=beam_width,
        num_return_sequences=num_return_sequences,
        stop_words=tuple(stop or ()),
        bad_words=tuple(bad or ()),
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        return_log_probs=log_probs,
    )
    # A letter that the terminal's encoding lacks must not end the command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    target = _find_target(url, "http" if interface == "http" else "grpc", model, timeout)
    to_prompt = _plan_prompt(target, chat, system)
    if batch is not None:
        _ask_all(target, batch, request, to_prompt)
    else:
        _check_prompt(request.text_input)
        request = dataclasses.replace(request, text_input=to_prompt(request.text_input))
        _ask_one(target, request, as_json=as_json)


def _check_usage(
    prompt: str | None, batch: Path | None, interface: str, chat: bool | None, system: str | None
) -> None:
    if (prompt is None) == (batch is None):
        raise typer.BadParameter("give a PROMPT, or --batch FILE", param_hint="PROMPT")
    if interface not in ("grpc", "http"):
        raise typer.BadParameter(f"{interface!r} is not grpc or http", param_hint="-i")
    if system is not None and chat is False:
        raise typer.BadParameter("needs the chat template, so not --raw", param_hint="--system")


def _find_target(
    url: str | None, interface: Interface, model: str | None, timeout_s: float | None
) -> _Target:
    from trtllm_serve_cli.client import Endpoint, parse_address

    if url is not None:
        address = parse_address(url)
        endpoint = Endpoint(http=address) if interface == "http" else Endpoint(grpc=address)
        return _Target(endpoint, model or _FOREIGN_MODEL, interface, timeout_s)
    from trtllm_serve_cli import launch
    from trtllm_serve_cli.paths import find_home

    running = launch.find_running(find_home(), model)
    if model is None and len(running.models) != 1:
        raise BadInput(
            "The server has several models.",
            why=f"it serves {', '.join(running.models)}",
            next_step=f"tllm infer -m {running.models[0]} …",
        )
    return _Target(running.endpoint, model or running.models[0], interface, timeout_s)


def _plan_prompt(target: _Target, chat: bool | None, system: str | None) -> Callable[[str], str]:
    """What makes a prompt of the user's words: the model's chat template, or nothing."""
    if chat is False:
        return str
    from trtllm_serve_cli.client import fetch_model_config

    info = fetch_model_config(target.endpoint, target.model, target.interface)
    if info.chat_template is not None:
        return lambda words: _render(info, system, words)
    if chat or system is not None:
        raise BadInput(
            f"{target.model} has no chat template.",
            why="neither --chat nor --system means anything without one",
            next_step="ask it with --raw, and put everything into the prompt",
        )
    return str


def _render(info: ModelInfo, system: str | None, words: str) -> str:
    from trtllm_serve_cli.client.chat import render_chat

    messages = [{"role": "user", "content": words}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return render_chat(
        info.chat_template or "",
        messages,
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        adds_bos=info.adds_bos,
    )


def _ask_one(target: _Target, request: GenerateRequest, *, as_json: bool) -> None:
    from trtllm_serve_cli.client import stream, summarize_pieces

    is_live = not as_json and (request.num_return_sequences or 1) == (request.beam_width or 1) == 1
    pieces: list[Piece] = []
    arriving = stream(target.endpoint, target.model, request, target.interface, target.timeout_s)
    started_s = time.monotonic()
    try:
        with closing(_read_aside(arriving)) as awaited:
            for piece in awaited:
                pieces.append(piece)
                if is_live:
                    print(_printable(piece.text), end="", flush=True)
    except KeyboardInterrupt:
        _end_line(is_live)
        output.say(f"Cancelled on the server, after {len(pieces)} pieces of the answer.")
        raise typer.Exit(INTERRUPTED) from None
    except TllmError:
        _end_line(is_live and bool(pieces))
        raise
    completion = summarize_pieces(pieces, started_s, time.monotonic())
    if as_json:
        output.show_json({"model": target.model, **_as_data(completion)})
        return
    _end_line(is_live)
    if not is_live:
        for index, text in enumerate(completion.texts):
            print(f"[{index}] {_printable(text)}")
    _show_log_probs(completion)
    output.say(_describe(completion, was_streamed=request.stream))


def _read_aside(pieces: Generator[Piece, None, None]) -> Generator[Piece, None, None]:
    """`pieces`, read in a thread: an interrupt raised inside gRPC's code can leave its locks held.

    Leaving early ends the answer at its next piece, or else with this process.
    """
    from trtllm_serve_cli.client import Piece

    arrived: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
    is_left = threading.Event()

    def read() -> None:
        end: BaseException | None = None
        try:
            with closing(pieces):
                for piece in pieces:
                    arrived.put(piece)
                    if is_left.is_set():
                        break
        except BaseException as error:  # whatever it is, it is raised where the pieces are awaited
            end = error
        arrived.put(end)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while isinstance(item := arrived.get(), Piece):
            yield item
        if item is not None:
            raise item
    finally:
        is_left.set()
        reader.join(_LEAVING_S)


def _ask_all(
    target: _Target,
    file: Path,
    defaults: GenerateRequest,
    to_prompt: Callable[[str], str],
) -> None:
    from trtllm_serve_cli.client import generate, parse_batch, run_batch

    # Streamed whatever the user wants to see: so a cancel is noticed at the next token.
    defaults = dataclasses.replace(defaults, stream=(defaults.beam_width or 1) == 1)
    num_failed = index = 0
    with closing(
        run_batch(
            lambda request, stop: generate(
                target.endpoint, target.model, request, target.interface, target.timeout_s, stop
            ),
            parse_batch(_read_lines(file), defaults, to_prompt),
        )
    ) as answers:
        try:
            for index, answer in enumerate(answers):
                num_failed += isinstance(answer, TllmError)
                line = {"index": index, **_as_data(answer)}
                print(json.dumps(line, ensure_ascii=False), flush=True)
        except KeyboardInterrupt:
            output.say("Cancelled: what was in flight has been cancelled on the server.")
            raise typer.Exit(INTERRUPTED) from None
    if num_failed:
        output.say(f'{num_failed} of {index + 1} lines failed: see their "error".')
        raise typer.Exit(USER_CAN_FIX)


def _check_prompt(words: str) -> None:
    """A chat template would hide from the server that nothing was asked."""
    if not words:
        raise BadInput("The prompt is empty.", next_step='tllm infer "What is ML?"')


def _read_prompt(prompt: str) -> str:
    return _decode(sys.stdin.buffer.read(), "stdin") if prompt == "-" else prompt


def _read_lines(file: Path) -> Iterable[str]:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read.",
            why=error.strerror or str(error),
            next_step="give --batch a text file with a prompt a line, or a JSONL file",
        ) from error
    return _decode(content, str(file)).split("\n")


def _decode(content: bytes, origin: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{origin} is not UTF-8 text.",
            why=f"byte {error.start} is not",
            next_step="convert it first, as with `iconv -t utf-8`",
        ) from error


def _printable(text: str) -> str:
    """`text` as a terminal may have it: a model's control characters must not drive it."""
    if not sys.stdout.isatty():
        return text
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _end_line(has_text: bool) -> None:
    if has_text:
        print(flush=True)


def _as_data(answer: Completion | TllmError) -> dict[str, Any]:
    """An answer as JSON has it; times in milliseconds."""
    if isinstance(answer, TllmError):
        return {"error": str(answer)}
    rate = answer.tokens_per_s
    data: dict[str, Any] = {
        "text_output": answer.text,
        "num_input_tokens": answer.num_input_tokens,
        "num_output_tokens": answer.num_output_tokens,
        "ttft_ms": None if answer.ttft_s is None else round(answer.ttft_s * 1000, 3),
        "latency_ms": round(answer.latency_s * 1000, 3),
        "tokens_per_s": None if rate is None else round(rate, 2),
    }
    if len(answer.texts) > 1:
        data["texts"] = answer.texts
    if answer.cum_log_probs:
        data["cum_log_probs"] = answer.cum_log_probs
        data["output_log_probs"] = answer.output_log_probs
    return data


def _show_log_probs(completion: Completion) -> None:
    for index, total in enumerate(completion.cum_log_probs):
        each = completion.output_log_probs[index : index + 1]
        listed = " ".join(f"{value:.3f}" for values in each for value in values)
        output.say(f"log probability [{index}]: {total:.3f} ({listed})")


def _describe(completion: Completion, *, was_streamed: bool) -> str:
    """As in `46 tokens · first after 85 ms · 48.2 tokens/s`."""
    count = completion.num_output_tokens
    parts = ["tokens unknown" if count is None else f"{count} token{'s' * (count != 1)}"]
    if was_streamed and completion.ttft_s is not None:
        parts.append(f"first after {completion.ttft_s * 1000:.0f} ms")
    else:
        parts.append(f"after {completion.latency_s * 1000:.0f} ms")
    if completion.tokens_per_s is not None:
        parts.append(f"{completion.tokens_per_s:.1f} tokens/s")
    return " · ".join(parts)
