"""Define the request body of completions."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from trtllm_serve_cli.gateway.schema.marks import rejected
from trtllm_serve_cli.gateway.schema.sampling import SamplingBody, TokenId

# The default of `max_tokens` in OpenAI's API.
DEFAULT_MAX_TOKENS = 16
# Maximum number of sequences per request, which equals OpenAI's limit for embedding inputs.
MAX_SEQUENCES = 2048


class CompletionBody(SamplingBody, kw_only=True):
    """The body of `POST /v1/completions`.

    The prompt is a string, a list of strings, a list of token ids, or a list of lists of token ids.
    The default is an empty string.
    """

    PROMPT: ClassVar[str] = "prompt"

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None
    # vLLM's extensions to the OpenAI API.
    add_special_tokens: bool | None = None
    # Fields that are not supported.
    suffix: Annotated[
        str | None, rejected("the engines cannot insert text", "Put all text into `prompt`.")
    ] = None
    prompt_embeds: Annotated[
        str | list[str] | None,
        rejected("the engines do not accept embeddings as input", "Use `prompt` instead."),
    ] = None

    @property
    def num_generated(self) -> int:
        """The number of sequences to generate for each prompt."""
        return self.best_of or self.num_choices

    @property
    def num_sequences(self) -> int:
        """The number of sequences to generate for all prompts."""
        prompt = self.prompt
        if not isinstance(prompt, list) or (prompt and isinstance(prompt[0], int)):
            return self.num_generated
        return self.num_generated * len(prompt)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts of the request. Each is a string or a list of token ids."""
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]
        if self.prompt and all(isinstance(each, int) for each in self.prompt):
            return [[each for each in self.prompt if isinstance(each, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]
