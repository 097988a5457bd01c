"""Define the options for serving an engine, and the model that runs the engine in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.errors import BadInput

# The Triton model that runs the draft model's engine. NVIDIA's examples use the same name.
DRAFT_MODEL = "tensorrt_llm_draft"
# Parameters that apply to every engine that runs in an engine worker.
WORKER_PARAMETERS = frozenset(
    ("max_num_seqs", "max_seq_len", "max_num_tokens", "instances_share_engine", "engine_python")
)

# The parameters that limit an engine's batches, sequences and memory.
_LIMITS = ("max_num_seqs", "max_num_tokens", "max_seq_len", "max_tokens_in_paged_kv_cache")


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The options for serving an engine.

    For limits that are None, the default depends on the engine.

    - `parameters`: maps template parameter names to `--param` values, which override the other
      options.
    - `engine_python`: Python interpreter that has the engine's package, or empty for Triton's
      Python.
    - `host`: machine that runs the engine on its CPU, or None if unknown. The host's memory limits
      the KV cache size.
    """

    max_batch_size: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_beam_width: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = "inflight"
    engine_python: str = ""
    host: CpuHost | None = None


@dataclass(frozen=True, slots=True)
class CoreModel:
    """The Python model or C++ backend that Triton runs as the `tensorrt_llm` model.

    `backend_parameter` is the parameter that names the backend, or None for tllm's Python model.
    `entries` are the `config.pbtxt` entries that are the same for every engine. `omitted` are
    supported parameters that `config.pbtxt` does not contain.
    """

    backend_parameter: str | None = None
    entries: Mapping[str, str] = field(default_factory=dict)
    omitted: frozenset[str] = frozenset()


OUR_CORE_MODEL = CoreModel()


def list_limits(values: Mapping[str, str]) -> dict[str, int]:
    """Return the engine limits in `values`, keyed by parameter name."""
    return {name: int(values[name]) for name in _LIMITS if values.get(name)}


def describe_limits(engine: Engine, values: Mapping[str, str], host: CpuHost | None) -> str:
    """Return the engine's limits, for example "64 sequences, 256 tokens per step".

    `values` are the model repository's parameters. Return an empty string if `values` does not
    contain the limits. This default implementation ignores `host`, which describes the machine for
    engines that run on a CPU.
    """
    sequences, tokens = (values.get(name) for name in ("max_num_seqs", "max_num_tokens"))
    return show_limits(int(sequences), int(tokens)) if sequences and tokens else ""


def show_limits(max_num_seqs: int, max_num_tokens: int) -> str:
    """Format the batch limits: sequences per batch and tokens per step."""
    return f"{max_num_seqs:,} sequences, {max_num_tokens:,} tokens per step"


def choose_context_length(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> int:
    """Return the maximum total length of a prompt and its response, in tokens.

    Raise `BadInput` if the requested length exceeds the model's context length.
    """
    limit = engine.max_position_embeddings
    max_seq_len = int(overrides.get("max_seq_len") or options.max_seq_len or limit)
    if max_seq_len > limit:
        raise BadInput(
            f"--max-seq-len {max_seq_len} exceeds the context length of {engine.model_name}.",
            why=f"the model was trained on sequences of up to {limit} tokens",
            next_step=f"set --max-seq-len to {limit} or less",
        )
    return max_seq_len
