"""What a model repository will hold, as data: one `ModelConfig` per Triton model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.contract import Tensor, load_contracts
from trtllm_serve_cli.repository.parameters import check_parameters, defaults_for

if TYPE_CHECKING:
    from trtllm_serve_cli.build import Engine


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How an engine is to be served; None means the default that fits the engine.

    `parameters` are upstream's template parameters by name (`--param`), and win over the rest.
    """

    max_batch_size: int = 64
    max_seq_len: int | None = None
    max_num_tokens: int = 256
    max_beam_width: int = 4
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Who waits in Triton's queue, and how long; zeros leave it to Triton's defaults."""

    max_queue_size: int = 0
    default_timeout_microseconds: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One Triton model: what its `config.pbtxt` says, and which runtime module serves it."""

    name: str
    title: str
    module: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: dict[str, str]
    max_batch_size: int
    instance_count: int = 1
    is_decoupled: bool = False
    is_batched: bool = False
    max_queue_delay_microseconds: int = 0
    queue: QueuePolicy = QueuePolicy()
    backend: str = "python"


@dataclass(frozen=True, slots=True)
class RepositoryPlan:
    """A whole repository for the model `name`.

    `parameters` is what every parameter of the engine kind is, `asked` those that were wished for.
    """

    name: str
    engine: Engine
    models: tuple[ModelConfig, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ()


# Names that lead somewhere else in a repository.
RESERVED_NAMES = frozenset(
    ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
)
# The KV cache's default size: as many tokens per slot on average. A long request takes more than
# its share; the scheduler lets others wait meanwhile.
_KV_TOKENS_PER_SLOT = 512


def plan_repository(name: str, engine: Engine, options: ServingOptions) -> RepositoryPlan:
    """The repository that serves `engine` under `name`.

    Raises `BadInput` for a name that the layout itself uses, and for options beyond the engine.
    """
    check_name_is_free_in_layout(name)
    values = _values(engine, options)
    return RepositoryPlan(
        name=name,
        engine=engine,
        models=(
            _preprocessing(engine, values),
            _tensorrt_llm(engine, values),
            _postprocessing(engine, values),
            *(_text(each, name, engine, values) for each in _text_models(name)),
        ),
        parameters=values,
        asked=_asked(options),
    )


def check_name_is_free_in_layout(name: str) -> None:
    """Raise `BadInput` for a name that every model repository uses already."""
    if name in RESERVED_NAMES:
        raise BadInput(
            f"A model cannot be called {name}.",
            why="every model repository has a model of that name already",
            next_step="choose another name with -m NAME",
        )


def _text_models(name: str) -> Sequence[str]:
    return ("ensemble", "tensorrt_llm_bls", name)


def _values(engine: Engine, options: ServingOptions) -> dict[str, str]:
    """Every parameter of the engine kind: its default, what the options say, what was asked for."""
    given = check_parameters(options.parameters, engine.kind)
    max_seq_len = int(
        given.get("max_seq_len") or options.max_seq_len or engine.max_position_embeddings
    )
    if max_seq_len > engine.max_position_embeddings:
        raise BadInput(
            f"--max-seq-len {max_seq_len} is beyond the context of {engine.model_name}.",
            why=f"it was trained on {engine.max_position_embeddings} positions",
            next_step=f"ask for at most {engine.max_position_embeddings}",
        )
    kv_tokens = max(options.max_batch_size * _KV_TOKENS_PER_SLOT, max_seq_len)
    asked = {
        "triton_max_batch_size": str(options.max_batch_size),
        "max_num_seqs": str(options.max_batch_size),
        "max_seq_len": str(max_seq_len),
        "max_num_tokens": str(options.max_num_tokens),
        "max_beam_width": str(options.max_beam_width),
        "max_tokens_in_paged_kv_cache": str(kv_tokens),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }
    return defaults_for(engine.kind) | asked | given


def _asked(options: ServingOptions) -> tuple[str, ...]:
    """The parameters that are as they are because someone said so."""
    usual = ServingOptions()
    of_options = {
        "max_batch_size": ("triton_max_batch_size", "max_num_seqs", "max_tokens_in_paged_kv_cache"),
        "max_seq_len": ("max_seq_len", "max_tokens_in_paged_kv_cache"),
        "max_num_tokens": ("max_num_tokens",),
        "max_beam_width": ("max_beam_width",),
    }
    chosen = [
        parameter
        for option, parameters in of_options.items()
        if getattr(options, option) != getattr(usual, option)
        for parameter in parameters
    ]
    return tuple(dict.fromkeys([*chosen, *options.parameters]))


def _common(values: Mapping[str, str]) -> dict[str, Any]:
    return {"max_batch_size": int(values["triton_max_batch_size"])}


def _queue(values: Mapping[str, str]) -> dict[str, Any]:
    return {
        "is_batched": True,
        "max_queue_delay_microseconds": int(values["max_queue_delay_microseconds"]),
        "queue": QueuePolicy(max_queue_size=int(values["max_queue_size"])),
    }


def _queue_policy(values: Mapping[str, str]) -> QueuePolicy:
    policy = QueuePolicy(**{name: int(values[name]) for name in QueuePolicy.__slots__})
    if (
        not min(policy.priority_levels, 1)
        <= policy.default_priority_level
        <= policy.priority_levels
    ):
        raise BadInput(
            f"default_priority_level is {policy.default_priority_level}, and there are "
            f"{policy.priority_levels} priority_levels.",
            next_step=f"say default_priority_level=N with N from 1 to {policy.priority_levels}"
            if policy.priority_levels
            else "say priority_levels=N too",
        )
    return policy


def _preprocessing(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = load_contracts()["preprocessing"]
    return ModelConfig(
        name="preprocessing",
        title="text to token ids",
        module="preprocessing_model",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "tokenizer_dir": values["tokenizer_dir"],
            "add_special_tokens": values["add_special_tokens"],
        },
        instance_count=int(values["preprocessing_instance_count"]),
        **_queue(values),
        **_common(values),
    )


def _tensorrt_llm(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = load_contracts()["tensorrt_llm"]
    parameters = {
        "engine_kind": engine.kind,
        "gpt_model_path": values["engine_dir"],
        "gpt_model_type": "inflight_fused_batching",
        "vocab_size": str(engine.vocab_size),
    } | {
        name: values[name]
        for name in (
            "max_num_seqs",
            "max_seq_len",
            "max_num_tokens",
            "max_beam_width",
            "max_tokens_in_paged_kv_cache",
            "enable_kv_cache_reuse",
            "exclude_input_in_output",
            "cancellation_check_period_ms",
            "num_threads",
            "num_draft_tokens",
            "draft_model_dir",
            "engine_python",
            "lora_prefetch_dir",
            "max_loras",
            "lora_cache_max_adapter_size",
            "lora_cache_host_memory_bytes",
        )
    }
    return ModelConfig(
        name="tensorrt_llm",
        title=f"the engine of {engine.model_name} ({engine.kind})",
        module="tensorrt_llm_model",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters=parameters,
        is_decoupled=values["decoupled_mode"] == "true",
        is_batched=True,
        max_queue_delay_microseconds=int(values["max_queue_delay_microseconds"]),
        queue=_queue_policy(values),
        **_common(values),
    )


def _postprocessing(engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = load_contracts()["postprocessing"]
    return ModelConfig(
        name="postprocessing",
        title="token ids to text",
        module="postprocessing_model",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "tokenizer_dir": values["tokenizer_dir"],
            "skip_special_tokens": values["skip_special_tokens"],
        },
        instance_count=int(values["postprocessing_instance_count"]),
        is_batched=True,
        **_common(values),
    )


def _text(model: str, own_name: str, engine: Engine, values: Mapping[str, str]) -> ModelConfig:
    contract = load_contracts()["ensemble" if model == "ensemble" else "tensorrt_llm_bls"]
    return ModelConfig(
        name=model,
        title=f"text to text with {own_name}",
        module="text_model",
        inputs=contract.inputs,
        outputs=contract.outputs,
        parameters={
            "engine_kind": engine.kind,
            "tokenizer_dir": values["tokenizer_dir"],
            "tensorrt_llm_model_name": values["tensorrt_llm_model_name"],
            "preprocessing_model_name": values["preprocessing_model_name"],
            "skip_special_tokens": values["skip_special_tokens"],
            "cancellation_check_period_ms": values["cancellation_check_period_ms"],
            # For clients: what `tllm infer` needs to ask the model as it wants to be asked.
            "max_seq_len": values["max_seq_len"],
            "chat_template": engine.chat_template,
            "bos_token": engine.bos_token,
            "eos_token": engine.eos_token,
            "adds_bos": str(engine.adds_bos).lower(),
        },
        instance_count=int(values["bls_instance_count"]),
        is_decoupled=values["decoupled_mode"] == "true",
        **_common(values),
    )
