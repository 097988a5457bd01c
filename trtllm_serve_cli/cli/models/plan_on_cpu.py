"""Plan a model for this machine's CPU and print the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.build.engine import Engine
    from trtllm_serve_cli.engine_kinds.cpu_plan import CpuPlan
    from trtllm_serve_cli.paths import Home
    from trtllm_serve_cli.sizing.size_options import SizeOptions
    from trtllm_serve_cli.sources.source import Source

_WIDTH = 79


def find_cpu_engine(home: Home, name: str) -> Engine | None:
    """Return the engine of the imported model `name` if the engine runs on a CPU, otherwise None.

    Raise `RepositoryError` or `BuildFailed` if the model or its engine cannot be read.
    """
    from trtllm_serve_cli.engine_kinds.dispatch import load_engine
    from trtllm_serve_cli.engine_kinds.registry import find_kind
    from trtllm_serve_cli.repository.model.store import find_model

    imported = find_model(home, name)
    if imported is None or find_kind(imported.engine_kind).building.preview is None:
        return None
    return load_engine(imported.engine_path)


def preview_cpu_engine(source: Source, home: Home, quantization: str | None) -> Engine:
    """Return the engine that `tllm import` would build for a CPU.

    If the model's dimensions are from the catalog, print why they could not be read from the
    source. Raise `BadInput` if the CPU engine kind does not support the source or the quantization.
    Also raise the errors of `read_facts`.
    """
    from trtllm_serve_cli.engine_kinds.registry import EMBEDDED, find_kind
    from trtllm_serve_cli.sizing.facts import read_facts
    from trtllm_serve_cli.sources.source import CheckpointSource

    facts = read_facts(source, home)
    if facts.catalog_reason:
        output.notify(f"The model's dimensions are from tllm's catalog. {facts.catalog_reason}")
    assert isinstance(source, CheckpointSource)
    preview = find_kind(EMBEDDED).building.preview
    assert preview is not None
    try:
        return preview(facts, source.format, quantization)
    except BadInput as error:
        raise BadInput(
            error.what,
            why=error.why,
            next_step="specify a GPU, for example --gpu h200",
        ) from error


def show_cpu_plan(engine: Engine, size: SizeOptions, *, as_json: bool) -> None:
    """Choose and print the engine limits for this machine."""
    from trtllm_serve_cli.engine_kinds.cpu_memory import find_host
    from trtllm_serve_cli.engine_kinds.cpu_plan import plan_on_cpu
    from trtllm_serve_cli.engine_kinds.serving import ServingOptions

    options = ServingOptions(
        max_batch_size=size.max_batch_size,
        max_seq_len=size.max_seq_len,
        max_num_tokens=size.max_num_tokens,
    )
    plan = plan_on_cpu(engine, find_host(), options)
    if as_json:
        output.show_json(plan.as_dict())
    else:
        _show(plan)


def _show(plan: CpuPlan) -> None:
    from trtllm_serve_cli.engine_kinds.cpu_memory import kv_bytes_per_token

    engine, host = plan.engine, plan.host
    print(f"{engine.source} ({engine.architecture})")
    if plan.size is not None:
        print(f"  {output.show_memory(plan.size.weight_bytes)} of weights ({engine.weights})")
        print(f"  {kv_bytes_per_token(plan.size, host):,.0f} bytes of KV cache per token")
    memory = output.show_memory(host.memory_bytes)
    print(f"This machine: {memory} of memory, {host.num_threads} CPU threads\n")
    sentences = [f"Limits of the engine kind {engine.kind}: {plan.describe_limits()}"]
    if not plan.fits:
        required = output.show_memory(plan.required_bytes or 0)
        sentences = [f"The model does not fit. It requires at least {required} of memory."]
    sentences.append("To plan for a GPU, pass its type, for example --gpu h200.")
    for sentence in sentences:
        print(output.wrap(sentence, limit=_WIDTH))
