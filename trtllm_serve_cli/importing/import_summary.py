"""Describe the result of an import: the engine's limits, FP8 support and stage durations."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.engine_kinds.registry import find_kind
from trtllm_serve_cli.repository.model.model_config import RepositoryPlan
from trtllm_serve_cli.sizing.gpus import Gpu

_UNQUANTIZED = ("bfloat16", "float16", "float32")


def describe_serving(
    repository: RepositoryPlan, quantization: str | None, card: Gpu | None, host: CpuHost | None
) -> Iterator[str]:
    """Yield a line with the engine's limits, if known, and a line about FP8.

    Yield the FP8 line only if the GPU supports FP8, the engine kind can convert checkpoints to FP8,
    the engine is not quantized, and `quantization` (the `--quantization` value) is `None`.

    `card` is this machine's GPU type, or `None` if the machine has no GPU or the GPU is not in
    tllm's GPU table. `host` describes this machine's memory and CPU threads, or is `None` if
    unknown.
    """
    engine = repository.engine
    serving = find_kind(engine.kind).serving
    if limits := serving.describe_limits(engine, repository.parameters, host):
        # Name the GPU only for engines without a build. A built engine's limits are fixed.
        depends_on_card = engine.llm_arguments is not None
        origin = f" on {card.name}" if card and depends_on_card else ""
        yield f"Limits{origin}: {limits}"
    if _can_convert_to_fp8(repository, quantization, card):
        yield (
            "This GPU supports FP8. To use FP8, import the model again with --quantization fp8. "
            f"To estimate the effect, run `tllm plan -m {shlex.quote(repository.name)}`."
        )


def describe_stages(stages: Mapping[str, float]) -> str:
    """Return a summary of the import duration and the stage durations.

    `stages` maps stage names to durations in seconds. Example result: "41.3 s (checkpoint 12.1 s,
    engine 28.9 s, model repository 0.3 s)".
    """
    details = ", ".join(f"{name} {duration_s:.1f} s" for name, duration_s in stages.items())
    return f"{sum(stages.values()):.1f} s ({details})"


def _can_convert_to_fp8(
    repository: RepositoryPlan, quantization: str | None, card: Gpu | None
) -> bool:
    engine = repository.engine
    return (
        card is not None
        and card.fp8 is not None
        and quantization is None
        and engine.weights in _UNQUANTIZED
        and find_kind(engine.kind).converts_to_fp8
    )
