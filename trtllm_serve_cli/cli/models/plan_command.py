"""`tllm plan`: estimate whether a model fits on GPUs, before its weights are downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.models.plan_on_cpu import (
    find_cpu_engine,
    preview_cpu_engine,
    show_cpu_plan,
)
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.completion import known_models
from trtllm_serve_cli.cli.shared.model_argument import accepts_name
from trtllm_serve_cli.cli.shared.option_signature import OptionValues, builds_options, takes_options
from trtllm_serve_cli.cli.shared.options import JsonOption
from trtllm_serve_cli.errors import BadInput, TllmError
from trtllm_serve_cli.importing.sections import ModelSection
from trtllm_serve_cli.option_fields import option_fields
from trtllm_serve_cli.sizing.size_options import SizeOptions

if TYPE_CHECKING:
    from trtllm_serve_cli.paths import Home
    from trtllm_serve_cli.sizing.gpus import Gpu
    from trtllm_serve_cli.sizing.plan import ParallelPlan, SizePlan
    from trtllm_serve_cli.sources.source import Source

_WIDTH = 79
_COLUMNS = ("GPUs", "tp", "pp", "weights", "KV cache", "sequences", "one stream", "full load")


@accepts_name("name", complete=known_models)
@takes_options(model=option_fields(ModelSection, "source", "revision"))
@builds_options("size", SizeOptions)
def plan(
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="NAME",
            help="Model name: a catalog alias or an imported model. With -s, any name, as in `tllm "
            "import`: the plan is for the model at -s.",
        ),
    ] = None,
    model: OptionValues,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="GPU",
            help="GPU type, for example h200. Default: this machine's GPU type.",
        ),
    ] = None,
    num_gpus: Annotated[
        int | None,
        typer.Option(
            "--num-gpus",
            min=1,
            help=(
                "Maximum number of GPUs. Default: the number of GPUs in this machine. With --gpu, "
                "the default is 8, or --tp times --pp if the product is higher."
            ),
        ),
    ] = None,
    size: SizeOptions,
    as_json: JsonOption = False,
) -> None:
    """Estimate whether a model fits on GPUs and how fast it runs.

    Without an NVIDIA GPU, and for imported openvino models, print the limits for this machine's CPU
    instead. If --gpu or another option that does not apply to CPUs is set, the plan is always for
    GPUs.

    For models on the Hugging Face Hub, only config.json and the weight index are downloaded. If the
    Hub cannot be reached or denies access, the model's dimensions are read from the catalog. See
    docs/concepts/sizing.md for details of the estimate.

    Example:  tllm plan -m llama-3.1-8b --gpu h200

    Example:  tllm plan -m big -s hf:ORG/NAME --gpu h100 --tp 8 --quantization fp8
    """
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.sizing.facts import read_facts
    from trtllm_serve_cli.sizing.gpus import find_gpus
    from trtllm_serve_cli.sizing.plan import plan_size
    from trtllm_serve_cli.sources.fetch import apply_revision

    home = find_home()
    source = apply_revision(_find_source(name, model.get("source"), home), model.get("revision"))
    if gpu is None and num_gpus is None and not size.requires_gpu:
        engine = find_cpu_engine(home, name) if name is not None and not model else None
        is_for_cpu = engine is not None or not find_gpus()
        if is_for_cpu and (engine is None or size.quantization is not None):
            engine = preview_cpu_engine(source, home, size.quantization)
        if engine is not None:
            show_cpu_plan(engine, size, as_json=as_json)
            return
    card, present = _find_card(gpu)
    answer = plan_size(read_facts(source, home), card, num_gpus or present, size)
    if as_json:
        output.show_json(answer.as_dict())
    else:
        _show(answer)


def _find_card(named: str | None) -> tuple[Gpu, int | None]:
    """Return the GPU type for the estimate, and the number of GPUs in this machine.

    If `named` is set, the type is `named` and the number is None. Otherwise, return the type of
    this machine's GPUs.
    """
    from trtllm_serve_cli.sizing.gpus import choose_present, find_gpus, load_gpu

    if named is not None:
        return load_gpu(named), None
    return choose_present(find_gpus())


def _find_source(name: str | None, source: str | None, home: Home) -> Source:
    from trtllm_serve_cli.importing.import_plan import find_source
    from trtllm_serve_cli.paths import check_model_name
    from trtllm_serve_cli.sources.registry import parse_source

    if source is not None:
        if name is not None:
            _check_name_with_source(name, parse_source(source), home)
        return parse_source(source)
    if name is None:
        raise BadInput(
            "No model was specified.",
            why="neither -m nor -s is set",
            next_step="specify a model, for example `tllm plan -m llama-3.1-8b --gpu h200`",
        )
    check_model_name(name)
    return find_source(name, home)


def _check_name_with_source(name: str, source: Source, home: Home) -> None:
    """Check the name that `tllm import` would use for the model at `source`.

    If the name already refers to a model from another source, print that the plan is for `source`.
    Raise `BadInput` if the name is not valid.
    """
    from trtllm_serve_cli.importing.import_plan import find_source
    from trtllm_serve_cli.paths import check_model_name

    check_model_name(name)
    try:
        known = find_source(name, home)
    except TllmError:  # The name is new, or the manifest of the imported model is not valid.
        return
    if known.unpinned() != source.absolute().unpinned():
        output.notify(f"The plan is for {source}, not for the source of {name}, which is {known}.")


def _show(plan: SizePlan) -> None:
    from trtllm_serve_cli.sources.disk_space import show_size

    shape, counts, formats, gpu = plan.facts.shape, plan.parameters, plan.formats, plan.gpu
    active = f", {_billions(counts.active)} active" if counts.active < counts.total else ""
    quantized = f", weights {formats.quantization}" if formats.quantization != "none" else ""
    print(f"{plan.facts.source} ({shape.architecture})")
    stored = f"; {show_size(plan.facts.weight_bytes)} on disk" if plan.facts.weight_bytes else ""
    parameters = f"{_billions(counts.total)} parameters{active}"
    described = f"{parameters}; {formats.dtype}{quantized}{stored}"
    print(output.wrap(described, first="  ", rest="  ", limit=_WIDTH))
    if reason := plan.facts.catalog_reason:
        sentence = f"The model's dimensions are from tllm's catalog. {reason}"
        print(output.wrap(sentence, first="  ", rest="  ", limit=_WIDTH))
    cache = f"{plan.kv_bytes_per_token:,} bytes of KV cache per token ({formats.kv_cache_dtype})"
    print(output.wrap(cache, first="  ", rest="  ", limit=_WIDTH))
    print(
        output.wrap(
            f"{gpu.name}: {_gib(gpu.memory_bytes)} GiB, {gpu.bandwidth_gb_per_s / 1000:g} TB/s, "
            f"{gpu.fp16:g} TFLOP/s; {plan.demand.input_len} prompt tokens, "
            f"{plan.demand.output_len} response tokens",
            limit=_WIDTH,
        )
        + "\n"
    )
    output.show_table(_COLUMNS, [_row(each) for each in plan.plans], is_numeric=True)
    units = "Units: GiB per GPU for weights and KV cache, tokens/s for one stream and full load."
    for sentence in (units, _describe_smallest(plan), *_describe_options(plan)):
        print(output.wrap(sentence, limit=_WIDTH))
    print("\nAssumptions:")
    for sentence in plan.assumptions:
        print(output.wrap(sentence, first="- ", rest="  ", limit=_WIDTH))


def _row(plan: ParallelPlan) -> tuple[str, ...]:
    at, memory, speed = plan.parallelism, plan.memory, plan.speed
    sizes = (_gib(memory.weights), _gib(memory.kv_cache) if memory.kv_cache else "-")
    room = f"{memory.num_sequences:,}" if speed else "too large"
    speeds = (
        (f"{speed.single_stream_tokens_per_s:,.0f}", f"{speed.saturated_tokens_per_s:,.0f}")
        if speed
        else ("", "")
    )
    return (str(at.world_size), str(at.tp), str(at.pp), *sizes, room, *speeds)


def _describe_smallest(plan: SizePlan) -> str:
    if plan.smallest is None:
        return "The model does not fit, even on 128 GPUs of this type."
    at = plan.smallest.parallelism
    experts = f" --moe-tp {at.moe_tp} --moe-ep {at.moe_ep}" if plan.facts.shape.experts else ""
    where = f"--tp {at.tp} --pp {at.pp}{experts}"
    if at.world_size > plan.num_gpus:
        return (
            f"The model requires {at.world_size} GPUs ({where}), but the maximum is "
            f"{plan.num_gpus}."
        )
    return f"Minimum number of GPUs: {at.world_size} ({where})"


def _describe_options(plan: SizePlan) -> Iterator[str]:
    """Yield sentences about the default limits and about FP8, for the plan with the fewest GPUs."""
    if plan.smallest is None:
        return
    if limits := plan.smallest.limits:
        unsplit = f" (pytorch and tensorrt: {limits.max_unsplit_tokens:,})"
        yield (
            f"Default limits on this number of GPUs: {limits.max_num_seqs:,} sequences and "
            f"{limits.max_num_tokens:,} tokens per step"
            f"{unsplit if limits.max_unsplit_tokens != limits.max_num_tokens else ''}"
        )
    fp8 = plan.smallest_in_fp8
    if fp8 and fp8.speed and plan.smallest.speed:
        now, then = plan.smallest.speed, fp8.speed
        yield (
            f"Upper limits with --quantization fp8: {_gib(fp8.memory.weights)} GiB of weights, "
            f"{then.single_stream_tokens_per_s:,.0f} tokens/s for one stream "
            f"({_gain(then.single_stream_tokens_per_s, now.single_stream_tokens_per_s)}), "
            f"{then.saturated_tokens_per_s:,.0f} at full load "
            f"({_gain(then.saturated_tokens_per_s, now.saturated_tokens_per_s)}). FP8 changes the "
            "responses, so compare their quality for your task."
        )


def _gain(then: float, now: float) -> str:
    return f"{then / now - 1:+.0%}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f}"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"
