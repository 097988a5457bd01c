"""Print the token ids of a prompt and its response, for `tllm infer --show-tokens`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from trtllm_serve_cli.cli.infer import logits
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.option_signature import OptionValues
from trtllm_serve_cli.cli.shared.target import Target

if TYPE_CHECKING:
    from trtllm_serve_cli.client.generate import Completion

_FLAG = "--show-tokens"


def check_usage(options: InferOptions, request: OptionValues, *, has_prompt: bool) -> None:
    """Raise `BadParameter` if --show-tokens cannot be combined with the other options."""
    if not has_prompt or options.batch is not None:
        raise typer.BadParameter(
            ("--show-tokens requires a single prompt. Pass PROMPT, and omit --batch."),
            param_hint=_FLAG,
        )
    if options.interface != "grpc":
        raise typer.BadParameter(
            f"--show-tokens requires gRPC. Omit -i {options.interface}.", param_hint=_FLAG
        )
    if logits.list_requested(options):
        raise typer.BadParameter(
            (
                "--show-tokens cannot be used with --context-logits or --generation-logits. Omit "
                "--show-tokens, or omit the logits options."
            ),
            param_hint=_FLAG,
        )
    # On a server, --show-tokens bypasses the text model and sends the request directly to the
    # preprocessing, tensorrt_llm and postprocessing models. Reject options that only text models
    # and local engines support.
    unsupported = {
        "--lora": "lora_name",
        "--stop-after-ms": "stop_after_ms",
        "--num-draft-tokens": "num_draft_tokens",
    }
    for flag, name in unsupported.items():
        if not options.no_server and request.get(name) is not None:
            raise typer.BadParameter(
                (f"--show-tokens cannot be used with {flag}. Omit one of them."),
                param_hint=_FLAG,
            )


def use_pipeline(target: Target) -> Target:
    """Return `target` with an endpoint that also returns token ids.

    If the target is a local engine, return it unchanged, because a local engine already returns
    token ids.
    """
    from trtllm_serve_cli.client.endpoint import Endpoint
    from trtllm_serve_cli.client.token_pipeline import open_token_pipeline

    if not isinstance(target.endpoint, Endpoint):
        return target
    assert target.info is not None
    pipeline = open_token_pipeline(target.endpoint, target.info)
    return dataclasses.replace(target, endpoint=pipeline)


def show_ids(completion: Completion) -> None:
    """Print the token ids to stderr."""
    output.notify(f"Input ids: {_join(completion.input_ids)}")
    for index, ids in enumerate(completion.output_ids):
        number = f" [{index}]" if len(completion.output_ids) > 1 else ""
        output.notify(f"Output ids{number}: {_join(ids)}")


def as_data(completion: Completion) -> dict[str, Any]:
    """Return the token ids as a JSON-compatible dict."""
    return {"input_ids": completion.input_ids, "output_ids": completion.output_ids}


def _join(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))
