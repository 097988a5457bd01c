"""Represent a model that the gateway serves, with its tokenizer and backend."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.errors import invalid
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.schema.sampling import SamplingDefaults
from trtllm_serve_cli.runtime.text.text_limits import find_max_length
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer

NO_DEFAULTS = SamplingDefaults()


@dataclass(frozen=True)
class LoadedModel:
    """A model that can receive requests."""

    # The model's name in API requests.
    name: str
    info: ModelInfo
    tokenizer: Tokenizer
    backend: Backend
    # Chat template, or None if the model does not have one.
    template: ChatTemplate | None
    # Creation time in seconds since the epoch (see `find_creation_time`). For adapters that clients
    # load, it is the load time.
    created: int
    # Default values of the sampling parameters that a request does not set.
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    # The engine's name for the LoRA adapter. It is None for base models and for adapters that are
    # selected by task id.
    lora_name: str | None = None
    # The adapter's folder. It is None for base models, and for adapters that the engine loads by
    # name at startup.
    lora_folder: str | None = None
    # The adapter's task id in the engine. It is None for base models, and for adapters that are
    # selected by name. If the engine evicts the adapter, the weights are read from `lora_folder`.
    lora_task_id: int | None = None
    # Name of the adapter's base model, or None if the model is not an adapter.
    root: str | None = None

    @property
    def engine_kind(self) -> str:
        return self.info.engine_kind or ""

    @property
    def max_seq_len(self) -> int:
        """The context length in tokens, or 2**30 if it is unknown."""
        return self.info.max_seq_len or 1 << 30

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raise `ApiError` (400) if a token id is outside the vocabulary.

        The ids come from the request field `param`. If the model's configuration does not contain
        the vocabulary size, use that of the tokenizer. The engine does not reject such ids in
        prompts (see `fit_to_vocabulary`).
        """
        size = self.info.vocab_size or self.tokenizer.vocab_size
        if token_ids and max(token_ids) >= size:
            raise invalid(
                f"The token id {max(token_ids)} in `{param}` is outside the vocabulary. Send token "
                f"ids from 0 to {size - 1}.",
                param,
            )

    def encode(self, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, which comes from the request field `param`.

        If the text has too many characters to fit in the context, raise `ApiError` (400) without
        encoding it.
        """
        limit = find_max_length(self.max_seq_len)
        if len(text) > limit:
            raise invalid(
                f"This model's maximum context length is {self.max_seq_len} tokens, which allows "
                f"at most {limit} characters. However, the prompt has {len(text)} characters. "
                "Shorten the prompt.",
                param,
                "context_length_exceeded",
            )
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    @cached_property
    def fingerprint(self) -> str:
        """The value of `system_fingerprint`, which identifies the model's configuration.

        The value is the same in all gateway processes, and a restart does not change it.
        """
        template = None if self.template is None else self.template.source
        facts = (self.info.settings_hash, template, msgspec.structs.asdict(self.sampling_defaults))
        return "fp_" + hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:10]

    @cached_property
    def extra_end_ids(self) -> tuple[int, ...]:
        """The end tokens in `generation_config.json`, except for the tokenizer's end token."""
        folder = self.info.tokenizer_dir
        return read_extra_end_ids(Path(folder), self.tokenizer.end_id) if folder else ()

    @property
    def adapter_fields(self) -> dict[str, Any]:
        """The fields of a `GenerationRequest` that select the adapter, or {} for a base model.

        If the field `lora_file` is set, the adapter is read again from this folder after the engine
        has evicted it or has been restarted.
        """
        fields = {
            "lora_name": self.lora_name,
            "lora_task_id": self.lora_task_id,
            "lora_file": self.lora_folder,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def with_adapter(self, name: str, **selection: Any) -> LoadedModel:
        """Return a copy of this model that uses a LoRA adapter and is served as `name`.

        `selection` contains the fields that select the adapter: either `lora_name` or
        `lora_task_id`, and optionally `lora_folder`.
        """
        return dataclasses.replace(self, name=name, root=self.name, **selection)


def read_sampling_defaults(folder: Path) -> SamplingDefaults:
    """Return the sampling parameters in the folder's `generation_config.json`.

    Ignore values that would be invalid in a request. Read the same parameters as vLLM
    (`get_diff_sampling_param` in vllm/config/model.py), except for `max_new_tokens`, because this
    value limits responses and is not a recommendation for sampling.
    """
    config = _read_generation_config(folder)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(SamplingDefaults):
        with contextlib.suppress(msgspec.ValidationError):
            values[field.name] = msgspec.convert(config.get(field.name), field.type)
    return SamplingDefaults(**values)


def read_extra_end_ids(folder: Path, end_id: int) -> tuple[int, ...]:
    """Return the end tokens in the folder's `generation_config.json` that are not `end_id`.

    Chat models often have several end tokens, for example one for the end of a turn.
    """
    ids = _read_generation_config(folder).get("eos_token_id")
    listed = ids if isinstance(ids, list) else [ids]
    return tuple(each for each in listed if isinstance(each, int) and each != end_id)


def _read_generation_config(folder: Path) -> dict[str, Any]:
    """Return the folder's `generation_config.json`, or {} if it is missing or not valid."""
    try:
        config = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
