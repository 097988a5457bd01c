"""`tllm infer`: send prompts to a running model."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import uuid
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.infer import (
    batch,
    embedding,
    guided_decoding,
    logits,
    openai_target,
    option_names,
    prompts,
    render_answer,
    token_ids,
)
from trtllm_serve_cli.cli.infer.infer_options import InferOptions, ModelOption, PromptArgument
from trtllm_serve_cli.cli.shared import openai_options, output
from trtllm_serve_cli.cli.shared.completion import addresses, completes, served_models
from trtllm_serve_cli.cli.shared.exits import INTERRUPTED
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, builds_options, takes_options
from trtllm_serve_cli.cli.shared.options import JsonOption
from trtllm_serve_cli.cli.shared.target import Target, find_target
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import BadInput, RequestFailed
from trtllm_serve_cli.option_fields import option_fields

if TYPE_CHECKING:
    from trtllm_serve_cli.client.generate import (
        Completion,
        GenerateRequest,
        Message,
        RawTensor,
    )
    from trtllm_serve_cli.client.model_info import ModelInfo


@completes(model=served_models, url=addresses("grpc", "http"))
@takes_options(request=tuple(each for each in option_fields(GenerateRequest) if each.is_declared))
@builds_options("options", InferOptions)
def infer(
    *,
    prompt: PromptArgument = None,
    model: ModelOption = None,
    options: InferOptions,
    request: OptionValues,
    as_json: JsonOption = False,
) -> None:
    """Send a prompt to a running model and print the response as it arrives.

    By default, the request is sent to the server that `tllm start` started. Without PROMPT, the
    prompt is read from stdin, or a conversation starts if stdin is a terminal. Ctrl-C cancels the
    request on the server. With --batch, the responses are printed as JSONL, in the order of the
    prompts. For embedding models, the first values of the embedding are printed, or all values with
    --json.

    In JSON and JSONL, finish_reason is why the response ended: usually stop or length. It is null
    if the server does not report it, as Triton's models in the inflight and gpt layouts.

    Example:  tllm infer "What is ML?" --max-tokens 50 --seed 1
    """
    if prompt and len(prompt) > 1:
        raise typer.BadParameter(
            "The prompt must be a single argument. Put the prompt in quotes, and specify the "
            "model with -m NAME.",
            param_hint="PROMPT",
        )
    send_prompt(prompt[0] if prompt else None, model, options, request, as_json=as_json)


def send_prompt(
    prompt: str | None,
    model: str | None,
    options: InferOptions,
    request: OptionValues,
    *,
    as_json: bool = False,
) -> None:
    """Send a request with the options of `tllm infer` and print the response."""
    with contextlib.ExitStack() as resources:
        try:
            _send(prompt, model, options, request, resources, as_json=as_json)
        except (BadInput, RequestFailed) as error:
            option_names.name_options(error, options, request)
            raise


def _send(
    prompt: str | None,
    model: str | None,
    options: InferOptions,
    request: OptionValues,
    resources: contextlib.ExitStack,
    *,
    as_json: bool,
) -> None:
    _check_usage(prompt, options, request)
    beam_width = request.get("beam_width", 1)
    num_responses = max(request.get("num_return_sequences", 1), beam_width)
    if options.batch is None and prompt is None and not sys.stdin.isatty():
        prompt = "-"
    is_conversation = options.batch is None and prompt is None
    if is_conversation:
        _check_conversation(
            is_possible=options.chat is not False and not as_json and num_responses == 1
        )
    guide = guided_decoding.plan_guide(options)
    lora_weights, lora_config = _load_adapter(options, request.get("lora_task_id"))
    # Print `?` for each character that stdout's encoding does not support. `main` has configured
    # stdout to print escape sequences instead.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    target = _open_target(options, model, prompt, request, resources)
    info = target.info
    assert info is not None
    if info.embedding is not None:
        embedding.infer_embedding(target, prompt, options, request, as_json=as_json)
        return
    if options.show_tokens:
        target = token_ids.use_pipeline(target)
    # Even with --no-stream, stream the response in these cases:
    # - The request sets `stop_after_ms`, because the client prints the parts received in time.
    # - The request is part of a batch, because each line of a batch can set `stop_after_ms`.
    # - The interface is HTTP, because the server detects a disconnected client only when it sends
    #   a part of the response.
    needs_parts = bool(options.batch or request.get("stop_after_ms"))
    is_streamed = options.stream or needs_parts or target.interface == "http"
    # Do not stream requests for logits, so that the logits arrive in one array instead of one per
    # part.
    is_streamed = is_streamed and not logits.list_requested(options)
    # Do not stream requests with draft tokens, because models reject such requests in streaming
    # mode.
    is_streamed = is_streamed and not request.get("num_draft_tokens")
    defaults = GenerateRequest(
        text_input="",
        stream=is_streamed and beam_width == 1 and info.is_decoupled,
        guided_decoding_guide_type=guide.kind,
        guided_decoding_guide=guide.text,
        lora_weights=lora_weights,
        lora_config=lora_config,
        request_id=options.request_id or uuid.uuid4().hex[:16],
        history=_plan_history(info, options.system),
        return_context_logits=options.context_logits is not None,
        return_generation_logits=options.generation_logits is not None,
        **request,
    )
    if is_conversation:
        from trtllm_serve_cli.cli.infer.conversation import converse

        converse(target, info, defaults, options.system, is_live=options.stream)
        return
    to_prompt = prompts.plan_prompt(info, options.chat, options.system)
    if options.batch is not None:
        send = batch.infer_rows if options.batch_inputs else batch.infer_batch
        send(target, options.batch, defaults, to_prompt)
        return
    words = prompts.read_prompt(prompt or "")
    prompts.check_prompt(words)
    prompted = dataclasses.replace(defaults, text_input=to_prompt(words))
    is_live = prompted.stream and options.stream and num_responses == 1 and not options.show_tokens
    completion = _infer_one(target, prompted, options, is_live=is_live, as_json=as_json)
    logits.write_logits(completion, options)


def _open_target(
    options: InferOptions,
    model: str | None,
    prompt: str | None,
    request: OptionValues,
    resources: contextlib.ExitStack,
) -> Target:
    """Return the target of the request: a model on a server, or a local engine.

    With `--no-server`, start the model's engine, which stops when `resources` is closed. If the
    engine runs in Triton's C++ backend, run TensorRT-LLM's run.py script instead and exit.
    """
    if options.no_server:
        from trtllm_serve_cli.cli.infer import no_server
        from trtllm_serve_cli.cli.models.parameters import open_named
        from trtllm_serve_cli.engine_kinds.registry import find_kind

        no_server.check_usage(options)
        repository = open_named(model, None)
        if repository.layout == "embedding":
            raise BadInput(
                f"{repository.name} cannot run without a server.",
                why="--no-server supports only models that generate text",
                next_step=f"run `tllm start -m {repository.name}`, and omit --no-server",
            )
        if find_kind(repository.kind).runs_in_triton_backend:
            no_server.run_script(repository, prompt, options, request)
        return no_server.open_engine(options, repository, resources)
    if options.interface == "openai":
        return openai_target.open_target(options, model)
    from trtllm_serve_cli.client.endpoint import Endpoint
    from trtllm_serve_cli.client.model_info import fetch_model_config

    target = find_target(options.url, options.interface, model, options.timeout, options.tls_ca)
    if target.interface != options.interface and (flags := _list_grpc_only(options)):
        raise BadInput(
            f"{flags[0]} requires gRPC.",
            why=f"{options.url} serves HTTP, not gRPC",
            next_step=f"pass the server's gRPC port with -u, or omit {flags[0]}",
        )
    assert isinstance(target.endpoint, Endpoint) and target.interface != "openai"
    info = fetch_model_config(target.endpoint, target.model, target.interface)
    return dataclasses.replace(target, info=info)


def _list_grpc_only(options: InferOptions) -> list[str]:
    """Return the options in use that require gRPC."""
    used = {
        "--batch-inputs": options.batch_inputs,
        "--lora-dir": options.lora_dir is not None,
        "--show-tokens": options.show_tokens,
        "--context-logits": options.context_logits is not None,
        "--generation-logits": options.generation_logits is not None,
    }
    return [flag for flag, is_used in used.items() if is_used]


def _check_usage(prompt: str | None, options: InferOptions, request: OptionValues) -> None:
    if prompt is not None and options.batch is not None:
        raise typer.BadParameter(
            "PROMPT and --batch cannot be used together. Omit one of them.", param_hint="PROMPT"
        )
    if options.system is not None and options.chat is False:
        raise typer.BadParameter(
            "--system requires the chat template, which --raw disables. Omit --system or --raw.",
            param_hint="--system",
        )
    openai_options.check_usage(options.interface, options.api, options.api_key, options.tls_ca)
    openai_target.check_usage(options)
    if options.batch_inputs:
        batch.check_usage(options)
    has_prompt = prompt is not None or not sys.stdin.isatty()
    if options.show_tokens:
        token_ids.check_usage(options, request, has_prompt=has_prompt)
    if logits.list_requested(options):
        logits.check_usage(options, has_prompt=has_prompt)


def _check_conversation(*, is_possible: bool) -> None:
    if not is_possible or not sys.stdout.isatty():
        raise typer.BadParameter(
            "Without a prompt, `tllm infer` starts a conversation, which requires a terminal and "
            "does not support --raw, --json, --beam-width or --num-return-sequences. Pass PROMPT "
            "or --batch FILE.",
            param_hint="PROMPT",
        )


def _plan_history(info: ModelInfo, system: str | None) -> tuple[Message, ...]:
    """Return the messages that precede the prompt.

    If the server applies the chat template, return the system prompt, if any. If the client applies
    the template, return no messages, because the client adds the system prompt when it renders the
    template.
    """
    if not info.renders_chat:
        return ()
    from trtllm_serve_cli.client.conversation import list_messages

    return list_messages(system)


def _load_adapter(
    options: InferOptions, task_id: int | None
) -> tuple[RawTensor, RawTensor] | tuple[None, None]:
    if options.lora_dir is None:
        return None, None
    if task_id is None:
        raise typer.BadParameter(
            "--lora-dir requires a task id. Add --lora-task-id N.", param_hint="--lora-dir"
        )
    if options.interface != "grpc":
        raise typer.BadParameter(
            f"--lora-dir requires gRPC. Omit -i {options.interface}.",
            param_hint="--lora-dir",
        )
    from trtllm_serve_cli.client.lora import load_adapter

    return load_adapter(options.lora_dir)


def _infer_one(
    target: Target,
    request: GenerateRequest,
    options: InferOptions,
    *,
    is_live: bool,
    as_json: bool,
) -> Completion:
    collected = render_answer.collect_stream(target, request, is_live=is_live and not as_json)
    if collected.was_interrupted:
        raise typer.Exit(INTERRUPTED)
    if as_json:
        identification = {"model": target.model, "request_id": request.request_id}
        ids = token_ids.as_data(collected.completion) if options.show_tokens else {}
        output.show_json({**identification, **render_answer.as_data(collected.completion), **ids})
        return collected.completion
    if not is_live:
        render_answer.show_texts(collected.completion)
    if options.show_tokens:
        token_ids.show_ids(collected.completion)
    render_answer.show_figures(collected, request, was_streamed=is_live and request.stream)
    return collected.completion
