"""Render a model's chat template for the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.client.chat import render_chat
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.errors import invalid


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's chat template, with the tokenizer's special tokens."""

    source: str
    bos_token: str = ""
    eos_token: str = ""
    adds_bos: bool = False

    @classmethod
    def of(cls, info: ModelInfo, override: str | None = None) -> ChatTemplate | None:
        """Return the template in a model's configuration, or `override`.

        Return None if the model has no template.
        """
        source = override or info.chat_template
        if source is None:
            return None
        return cls(source, info.bos_token, info.eos_token, info.adds_bos)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        adds_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. Raise `ApiError` (400) if the template rejects the messages."""
        try:
            return render_chat(
                self.source,
                messages,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
                adds_bos=self.adds_bos,
            )
        except BadInput as error:
            raise invalid(f"{error.what} {error.why}.", "messages") from error
