"""`tllm infer`: ask the model that is running."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from trtllm_serve_cli.cli.infer import guided_decoding, prompts, render_answer
from trtllm_serve_cli.cli.infer import infer_options as options
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED, USER_CAN_FIX
from trtllm_serve_cli.cli.shared.options import JsonOption, ModelOption
from trtllm_serve_cli.cli.shared.target import Target, find_target
from trtllm_serve_cli.errors import TllmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trtllm_serve_cli.client.generate import GenerateRequest, RawTensor


def infer(
    prompt: options.PromptArgument = None,
    model: ModelOption = None,
    interface: options.InterfaceOption = "grpc",
    url: options.UrlOption = None,
    chat: options.ChatOption = None,
    system: options.SystemOption = None,
    batch: options.BatchOption = None,
    max_tokens: options.MaxTokensOption = 200,
    min_tokens: options.MinTokensOption = None,
    stop: options.StopOption = None,
    stop_after_ms: options.StopAfterOption = None,
    timeout: options.TimeoutOption = None,
    temperature: options.TemperatureOption = None,
    top_k: options.TopKOption = None,
    top_p: options.TopPOption = None,
    seed: options.SeedOption = None,
    bad: options.BadOption = None,
    repetition_penalty: options.RepetitionPenaltyOption = None,
    presence_penalty: options.PresencePenaltyOption = None,
    frequency_penalty: options.FrequencyPenaltyOption = None,
    beam_width: options.BeamWidthOption = None,
    length_penalty: options.LengthPenaltyOption = None,
    num_return_sequences: options.NumReturnSequencesOption = None,
    json_schema: options.JsonSchemaOption = None,
    regex: options.RegexOption = None,
    grammar: options.GrammarOption = None,
    structural_tag: options.StructuralTagOption = None,
    guide: options.GuideOption = None,
    lora: options.LoraOption = None,
    lora_task_id: options.LoraTaskIdOption = None,
    lora_dir: options.LoraDirOption = None,
    stream: options.StreamOption = True,
    log_probs: options.LogProbsOption = False,
    perf: options.PerfOption = False,
    request_id: options.RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the running model, and see the answer as it comes.

    Finds the server that `tllm start` left running. Without PROMPT, a terminal gets a conversation,
    and anything else on stdin is the prompt. Ctrl-C cancels on the server. With --batch the answers
    are JSONL on stdout, in the file's order.

    Example:  tllm infer "What is ML?" --max-tokens 50 --seed 1
    """
    _check_usage(prompt, batch, interface, chat, system)
    num_answers = max(num_return_sequences or 1, beam_width or 1)
    if batch is None and prompt is None and not _is_terminal(sys.stdin):
        prompt = "-"
    is_conversation = batch is None and prompt is None
    if is_conversation:
        _check_conversation(is_possible=chat is not False and not as_json and num_answers == 1)
    form = guided_decoding.plan_guide(
        guide=guide,
        json_schema=json_schema,
        regex=regex,
        grammar=grammar,
        structural_tag=structural_tag,
    )
    lora_weights, lora_config = _load_adapter(lora_dir, lora_task_id, interface)
    # A letter that the terminal's encoding lacks must not end the command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    from trtllm_serve_cli.client.generate import GenerateRequest
    from trtllm_serve_cli.client.server import fetch_model_config

    target = find_target(url, "http" if interface == "http" else "grpc", model, timeout)
    info = fetch_model_config(target.endpoint, target.model, target.interface)
    request = GenerateRequest(
        text_input="",
        max_tokens=max_tokens,
        # Whatever the user wants to see: a stop needs parts that it can keep, and over HTTP the
        # server notices between two parts that its caller has gone.
        stream=(stream or stop_after_ms is not None or batch is not None or interface == "http")
        and (beam_width or 1) == 1
        and info.is_decoupled,
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
        length_penalty=length_penalty,
        guided_decoding_guide_type=form.kind,
        guided_decoding_guide=form.text,
        lora_name=lora,
        lora_task_id=lora_task_id,
        lora_weights=lora_weights,
        lora_config=lora_config,
        stop_after_ms=stop_after_ms,
        request_id=request_id or uuid.uuid4().hex[:16],
        return_log_probs=log_probs,
        return_perf_metrics=perf,
    )
    if is_conversation:
        from trtllm_serve_cli.cli.infer.conversation import converse

        converse(target, info, request, system, is_live=stream)
        return
    to_prompt = prompts.plan_prompt(info, chat, system)
    if batch is not None:
        _ask_all(target, batch, request, to_prompt)
        return
    words = prompts.read_prompt(prompt or "")
    prompts.check_prompt(words)
    request = dataclasses.replace(request, text_input=to_prompt(words))
    _ask_one(target, request, is_live=stream and num_answers == 1, as_json=as_json)


def _check_usage(
    prompt: str | None, batch: Path | None, interface: str, chat: bool | None, system: str | None
) -> None:
    if prompt is not None and batch is not None:
        raise typer.BadParameter("give a PROMPT, or --batch FILE", param_hint="PROMPT")
    if interface not in ("grpc", "http"):
        raise typer.BadParameter(f"{interface!r} is not grpc or http", param_hint="-i")
    if system is not None and chat is False:
        raise typer.BadParameter("needs the chat template, so not --raw", param_hint="--system")


def _check_conversation(*, is_possible: bool) -> None:
    if not is_possible or not _is_terminal(sys.stdout):
        raise typer.BadParameter(
            "give one, or --batch FILE: a conversation needs a terminal, and goes with none of "
            "--raw, --json, --beam-width and --num-return-sequences",
            param_hint="PROMPT",
        )


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _load_adapter(
    folder: Path | None, task_id: int | None, interface: str
) -> tuple[RawTensor, RawTensor] | tuple[None, None]:
    if folder is None:
        return None, None
    if task_id is None:
        raise typer.BadParameter("needs --lora-task-id N", param_hint="--lora-dir")
    if interface == "http":
        raise typer.BadParameter("goes over gRPC only", param_hint="--lora-dir")
    from trtllm_serve_cli.client.lora import load_adapter

    return load_adapter(folder)


def _ask_one(target: Target, request: GenerateRequest, *, is_live: bool, as_json: bool) -> None:
    heard = render_answer.collect_stream(target, request, is_live=is_live and not as_json)
    if heard.was_interrupted:
        raise typer.Exit(INTERRUPTED)
    if as_json:
        told = {"model": target.model, "request_id": request.request_id}
        output.show_json({**told, **render_answer.as_data(heard.completion)})
        return
    if not is_live:
        render_answer.show_texts(heard.completion)
    render_answer.show_figures(heard, request.request_id, was_streamed=is_live and request.stream)


def _ask_all(
    target: Target, file: Path, defaults: GenerateRequest, to_prompt: Callable[[str], str]
) -> None:
    from trtllm_serve_cli.client.ask import generate
    from trtllm_serve_cli.client.batch import parse_batch, run_batch
    from trtllm_serve_cli.client.generate import Completion
    from trtllm_serve_cli.client.transport.cancellation import Cancellation

    def ask(request: GenerateRequest, cancellation: Cancellation) -> Completion:
        return generate(
            target.endpoint,
            target.model,
            request,
            target.interface,
            target.timeout_s,
            cancellation,
        )

    num_failed = index = 0
    names: list[str] = []
    unnamed = dataclasses.replace(defaults, request_id="")
    requests = parse_batch(prompts.read_lines(file), unnamed, to_prompt)
    with closing(run_batch(ask, _name_all(requests, defaults.request_id, names))) as arriving:
        try:
            for index, answer in enumerate(arriving):
                num_failed += isinstance(answer, TllmError)
                line = {"index": index, "request_id": names[index], **render_answer.as_data(answer)}
                print(json.dumps(line, ensure_ascii=False), flush=True)
        except KeyboardInterrupt:
            output.notify(render_answer.describe_cancel(target, defaults, "what was in flight"))
            raise typer.Exit(INTERRUPTED) from None
    if num_failed:
        output.notify(f'{num_failed} of {index + 1} lines failed: see their "error".')
        raise typer.Exit(USER_CAN_FIX)


def _name_all(
    requests: Iterable[GenerateRequest | TllmError], name: str, names: list[str]
) -> Iterator[GenerateRequest | TllmError]:
    """The requests of a batch, each with an id of its own, which are put in `names`, too."""
    for index, request in enumerate(requests):
        if isinstance(request, TllmError):
            names.append("")
            yield request
        else:
            names.append(request.request_id or f"{name}-{index}")
            yield dataclasses.replace(request, request_id=names[-1])
