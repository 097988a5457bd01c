"""Handle `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`, as in vLLM 0.26.

lm-eval can use these endpoints instead of a local tokenizer. The model name is optional, because
lm-eval does not send it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trtllm_serve_cli.gateway.access.admission import admit, check_model, process
from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.http import json_response, read_json
from trtllm_serve_cli.gateway.model_registry import ModelRegistry
from trtllm_serve_cli.gateway.prompts.messages import check_messages, convert_message
from trtllm_serve_cli.gateway.schema.chat import ChatMessage, Tool
from trtllm_serve_cli.gateway.schema.sampling import TokenId
from trtllm_serve_cli.gateway.served_model import LoadedModel


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `POST /tokenize`, with either a prompt or the messages of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


async def tokenize(request: Request) -> Response:
    """Encode a prompt or a conversation and return its token ids."""
    body = await read_json(request, TokenizeBody)
    model = _find_model(request, body.model)
    await admit(request, model.name)
    return json_response(await process(request, partial(_tokenize, model, body)))


def _tokenize(model: LoadedModel, body: TokenizeBody) -> dict[str, Any]:
    if (body.prompt is None) == (body.messages is None):
        raise invalid(
            "Exactly one of `prompt` and `messages` is required. Send one of them.", "prompt"
        )
    prompt = body.prompt
    if prompt is None:
        if model.template is None:
            raise invalid(
                f"The model '{model.name}' has no chat template. Send `prompt` instead of "
                "`messages`.",
                "messages",
            )
        messages = body.messages or ()
        check_messages(messages)
        prompt = model.template.render(
            [convert_message(each) for each in messages],
            tools=[msgspec.to_builtins(each) for each in body.tools or ()] or None,
            adds_generation_prompt=body.add_generation_prompt,
            variables=body.chat_template_kwargs,
        )
    param = "messages" if body.prompt is None else "prompt"
    tokens = model.encode(prompt, param, add_special_tokens=body.add_special_tokens)
    decode_all = model.tokenizer.decode_all
    return {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": model.info.max_seq_len,
        "token_strs": decode_all([[each] for each in tokens], skip_special_tokens=False)
        if body.return_token_strs
        else None,
    }


async def detokenize(request: Request) -> Response:
    """Decode token ids and return their text."""
    body = await read_json(request, DetokenizeBody)
    model = _find_model(request, body.model)
    await admit(request, model.name)
    return json_response({"prompt": await process(request, partial(_detokenize, model, body))})


def _detokenize(model: LoadedModel, body: DetokenizeBody) -> str:
    if len(body.tokens) > model.max_seq_len:
        raise invalid(
            f"This model's maximum context length is {model.max_seq_len} tokens. However, `tokens` "
            f"has {len(body.tokens)} token ids. Send fewer token ids.",
            "tokens",
            "context_length_exceeded",
        )
    vocab_size = model.tokenizer.vocab_size
    if body.tokens and max(body.tokens) >= vocab_size:
        raise invalid(
            f"The token id {max(body.tokens)} in `tokens` is outside the vocabulary. Send token "
            f"ids from 0 to {vocab_size - 1}.",
            "tokens",
        )
    return model.tokenizer.decode(body.tokens, skip_special_tokens=False)


async def describe_tokenizer(request: Request) -> Response:
    """Return the tokenizer class, BOS and EOS tokens, chat template and context length."""
    model = _find_model(request, request.query_params.get("model"))
    return json_response(
        {
            "tokenizer_class": type(model.tokenizer).__name__,
            "bos_token": model.info.bos_token or None,
            "eos_token": model.info.eos_token or None,
            "chat_template": model.template.source if model.template else None,
            "model_max_length": model.info.max_seq_len,
        }
    )


def _find_model(request: Request, name: str | None) -> LoadedModel:
    """Return the model with this name, or the only model if `name` is None.

    Raise `ApiError` if the key may not use the model, if the model is unknown or not available, or
    if `name` is None and the gateway serves several models.
    """
    models: ModelRegistry = request.app.state.models
    name = models.require_only_name() if name is None else name
    check_model(request, name)
    return models.find(name)
