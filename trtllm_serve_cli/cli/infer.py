"""`tllm infer`: ask the model that is running."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli import output
from trtllm_serve_cli.cli.answers import as_data, describe, end_line, printable, show_log_probs
from trtllm_serve_cli.cli.exits import INTERRUPTED, USER_CAN_FIX
from trtllm_serve_cli.cli.options import JsonOption, ModelOption
from trtllm_serve_cli.cli.prompts import check_prompt, plan_prompt, read_lines, read_prompt
from trtllm_serve_cli.cli.target import Target, find_target
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from trtllm_serve_cli.client import GenerateRequest, Piece


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
        text_input=read_prompt(prompt) if prompt is not None else "",
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
    target = find_target(url, "http" if interface == "http" else "grpc", model, timeout)
    to_prompt = plan_prompt(target, chat, system)
    if batch is not None:
        _ask_all(target, batch, request, to_prompt)
    else:
        check_prompt(request.text_input)
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


def _ask_one(target: Target, request: GenerateRequest, *, as_json: bool) -> None:
    from trtllm_serve_cli.client import stream_apart, summarize_pieces

    is_live = not as_json and (request.num_return_sequences or 1) == (request.beam_width or 1) == 1
    pieces: list[Piece] = []
    arriving = stream_apart(
        target.endpoint, target.model, request, target.interface, target.timeout_s
    )
    started_s = time.monotonic()
    try:
        with closing(arriving):
            for piece in arriving:
                pieces.append(piece)
                if is_live:
                    print(printable(piece.text), end="", flush=True)
    except KeyboardInterrupt:
        end_line(is_live)
        output.say(f"Cancelled on the server, after {len(pieces)} pieces of the answer.")
        raise typer.Exit(INTERRUPTED) from None
    except TllmError:
        end_line(is_live and bool(pieces))
        raise
    completion = summarize_pieces(pieces, started_s, time.monotonic())
    if as_json:
        output.show_json({"model": target.model, **as_data(completion)})
        return
    end_line(is_live)
    if not is_live:
        for index, text in enumerate(completion.texts):
            print(f"[{index}] {printable(text)}")
    show_log_probs(completion)
    output.say(describe(completion, was_streamed=request.stream))


def _ask_all(
    target: Target,
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
            lambda request, cancellation: generate(
                target.endpoint,
                target.model,
                request,
                target.interface,
                target.timeout_s,
                cancellation,
            ),
            parse_batch(read_lines(file), defaults, to_prompt),
        )
    ) as answers:
        try:
            for index, answer in enumerate(answers):
                num_failed += isinstance(answer, TllmError)
                line = {"index": index, **as_data(answer)}
                print(json.dumps(line, ensure_ascii=False), flush=True)
        except KeyboardInterrupt:
            output.say("Cancelled: what was in flight has been cancelled on the server.")
            raise typer.Exit(INTERRUPTED) from None
    if num_failed:
        output.say(f'{num_failed} of {index + 1} lines failed: see their "error".')
        raise typer.Exit(USER_CAN_FIX)
