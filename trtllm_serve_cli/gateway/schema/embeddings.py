"""Define the request body of embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from trtllm_serve_cli.gateway.schema.marks import IGNORED
from trtllm_serve_cli.gateway.schema.sampling import TokenId

# Maximum number of inputs per request, as in OpenAI's API.
MAX_INPUTS = 2048


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/embeddings`.

    The input is a string, a list of strings, a list of token ids, or a list of lists of token ids.
    `prompt_name` selects one of the model's prompts, which is prepended to each string. As in vLLM,
    inputs with more than `truncate_prompt_tokens` tokens are truncated, and -1 selects the model's
    maximum length. The gateway rejects the value 0.
    """

    model: str
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    user: Annotated[str | None, IGNORED] = None
    prompt_name: str | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs of the request. Each is a string or a list of token ids."""
        if isinstance(self.input, str):
            return [self.input]
        if self.input and all(isinstance(each, int) for each in self.input):
            return [[each for each in self.input if isinstance(each, int)]]
        return [each for each in self.input if not isinstance(each, int)]
