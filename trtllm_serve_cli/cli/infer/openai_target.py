"""Find the server and the model for `tllm infer -i openai`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared.openai_options import find_openai_endpoint
from trtllm_serve_cli.cli.shared.target import Target

if TYPE_CHECKING:
    from trtllm_serve_cli.client.transport.openai.endpoint import Api


def check_usage(options: InferOptions) -> None:
    """Raise `BadParameter` if --api conflicts with the options for the chat template."""
    if options.api == "chat" and options.chat is False:
        raise typer.BadParameter(
            (
                "The chat completions API always applies the chat template. Omit --api chat or "
                "--raw."
            ),
            param_hint="--api",
        )
    if options.api == "completions" and (options.chat or options.system is not None):
        raise typer.BadParameter(
            (
                "The completions API never applies the chat template. Omit --api completions, "
                "or omit --chat and --system."
            ),
            param_hint="--api",
        )


def open_target(options: InferOptions, model: str | None) -> Target:
    """Return the model on the OpenAI-compatible server, as the target for requests.

    Raise:
    - `NoServer` if the server cannot be reached.
    - `RequestFailed` if a request fails.
    - `BadInput` if the URL is missing or invalid, or if the key is invalid.
    - `BadInput` if `model` is None and the server does not list exactly one model.
    """
    from trtllm_serve_cli.client.model_info import ModelInfo
    from trtllm_serve_cli.client.transport.openai.exchange import OpenAIModel
    from trtllm_serve_cli.client.transport.openai.served_models import find_model

    endpoint = find_openai_endpoint(options.url, options.api_key)
    found = find_model(endpoint, model)
    api: Api = options.api or ("completions" if options.chat is False else "chat")
    info = ModelInfo(found.name, max_seq_len=found.max_model_len, renders_chat=api == "chat")
    source = OpenAIModel(endpoint, found.name, api)
    return Target(source, found.name, "openai", options.timeout, info)
