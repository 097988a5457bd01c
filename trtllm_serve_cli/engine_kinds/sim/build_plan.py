"""Plan simulated engines, which contain timing data and the checkpoint's tokenizer.

The timing data is either read from a file or estimated as the theoretical optimum of a GPU
(`sizing.roofline`). For an estimate, the simulated KV cache size depends on the GPU memory.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from trtllm_serve_cli.build.build_plan import (
    BuildPlan,
    BuildRequest,
    Toolchain,
    embedding_facts,
    facts_of_engine,
)
from trtllm_serve_cli.build.build_step import WORK, BuildStep
from trtllm_serve_cli.build.engine_options import LIMITS, EngineOptions, refuse_unsupported
from trtllm_serve_cli.build.fingerprint import fingerprint_of_facts
from trtllm_serve_cli.engine_kinds.card_limits import SIZE_OPTIONS
from trtllm_serve_cli.engine_kinds.describe_step import plan_describe_step
from trtllm_serve_cli.errors import BadInput, MissingPart
from trtllm_serve_cli.runtime.engines.sim.timing import (
    SIMULATION_FILE,
    SchedulerLimits,
    Simulation,
    StepTiming,
    parse_simulation,
)
from trtllm_serve_cli.sizing.facts import ModelFacts, read_checkpoint_facts
from trtllm_serve_cli.sizing.families import FAMILIES
from trtllm_serve_cli.sizing.gpus import Gpu, load_gpu
from trtllm_serve_cli.sizing.kv_cache import TOKENS_PER_BLOCK, kv_bytes_of_sequence
from trtllm_serve_cli.sizing.plan import SizePlan, plan_size
from trtllm_serve_cli.sizing.roofline import estimate_step_cost
from trtllm_serve_cli.sizing.size_options import SizeOptions
from trtllm_serve_cli.sources.checkpoint import Checkpoint, read_config

_TOKENIZER_FILES = tuple(f"{WORK}/openvino_{name}.xml" for name in ("tokenizer", "detokenizer"))
# Maps each checkpoint format to the package that loads the tokenizer on the server.
TOKENIZER_PACKAGES = {"gguf": "openvino-genai", "hf": "transformers"}


def plan_build(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    """Return the build plan for the requested engine.

    Raise `BadInput` if an option is not supported or conflicts with another option, or if the
    timing file is not valid. Also raise `BadInput` if the GPU or the model family is unknown, or if
    the model does not fit on the GPU. Raise `MissingPart` if the tokenizer package is not
    installed.
    """
    checkpoint = request.checkpoint
    _check_tokenizer(checkpoint, tools)
    simulation = _find_simulation(request, tools)
    facts = {
        **facts_of_engine(checkpoint, request.kind, "none"),
        **embedding_facts(checkpoint),
        "simulation": simulation.to_json(),
    }
    fingerprint = fingerprint_of_facts(facts)
    describe = plan_describe_step(
        request,
        tools,
        title="Write the timing data and the tokenizer",
        weights="no",
        fingerprint=fingerprint,
        details=simulation.to_json(),
        outputs=(f"{WORK}/{SIMULATION_FILE}",),
    )
    return BuildPlan(
        model_name=request.model_name,
        kind=request.kind,
        weights="no",
        checkpoint=checkpoint,
        engine_dir=request.engine_dir,
        steps=(*_convert_tokenizer(checkpoint, tools), describe),
        fingerprint=fingerprint,
        estimated_bytes=0,
        facts=facts,
    )


def read_simulation(path: Path) -> Simulation:
    """Return the simulation described by a timing file.

    Raise `BadInput` if the file cannot be read or is not valid.
    """
    try:
        return parse_simulation(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"The timing file {path} cannot be read.",
            why=getattr(error, "strerror", None) or str(error),
            next_step="create a timing file from a benchmark result with `tllm bench calibrate "
            "RESULT_DIR -o timing.json`; docs/concepts/simulation.md describes the fields",
        ) from error


def plan_simulation(facts: ModelFacts, gpu: Gpu, options: EngineOptions) -> Simulation:
    """Return a simulation of the model at the theoretical optimum of `gpu`.

    Raise `BadInput` if the model does not fit on the requested number of GPUs, or if the model or
    the GPU does not support an option.
    """
    defaults = SchedulerLimits()
    sized = plan_size(
        facts,
        gpu,
        options=SizeOptions(
            **{name: getattr(options, name) for name in SIZE_OPTIONS},
            max_batch_size=options.max_batch_size or defaults.max_batch_size,
            max_num_tokens=options.max_num_tokens or defaults.max_num_tokens,
        ),
    )
    plan = sized.plans[0]
    if plan.speed is None:
        raise BadInput(
            f"The model does not fit on {plan.parallelism.world_size} x {gpu.name}.",
            why="the weights leave too little memory for a KV cache",
            next_step=f"run `tllm plan -s {shlex.quote(facts.source)} --gpu {gpu.name}` to find "
            "the required number of GPUs, then set --tp N",
        )
    cost = estimate_step_cost(
        facts.shape, plan.parallelism, gpu, sized.demand, plan.memory.num_sequences
    )
    return Simulation(
        timing=StepTiming(**{name: getattr(cost, name) for name in cost.__slots__}),
        limits=SchedulerLimits(
            max_batch_size=sized.demand.max_batch_size,
            max_num_tokens=sized.demand.max_num_tokens,
            max_tokens_in_paged_kv_cache=_count_kv_tokens(sized),
            tokens_per_block=TOKENS_PER_BLOCK,
        ),
        origin=f"ceilings of {plan.parallelism.world_size} x {gpu.name} for {facts.source} "
        f"({sized.formats.dtype}, weights {sized.formats.quantization}, KV cache "
        f"{sized.formats.kv_cache_dtype})",
    )


def _find_simulation(request: BuildRequest, tools: Toolchain) -> Simulation:
    if request.timing is not None:
        refuse_unsupported(request.options, "sim with --timing", supported=LIMITS)
        if request.gpu is not None:
            raise BadInput(
                "--gpu and --timing cannot be combined.",
                why=f"--timing {request.timing} replaces the estimate for --gpu {request.gpu}",
                next_step="omit --gpu or --timing",
            )
        return read_simulation(request.timing)
    refuse_unsupported(request.options, request.kind, supported=(*SIZE_OPTIONS, *LIMITS))
    gpu = load_gpu(request.gpu) if request.gpu else tools.gpu
    if gpu is None:
        raise BadInput(
            "The GPU to simulate is unknown.",
            why="--gpu is not set, and this machine does not have a GPU that tllm supports",
            next_step="set a GPU, for example --gpu h200, or pass a timing file with --timing FILE",
        )
    _check_family(request.checkpoint)
    return plan_simulation(read_checkpoint_facts(request.checkpoint), gpu, request.options)


def _check_family(checkpoint: Checkpoint) -> None:
    """Raise `BadInput` for an embedding model whose timing cannot be estimated."""
    if not checkpoint.is_embedding_model:
        return
    family = read_config(checkpoint).get("model_type")
    if family not in FAMILIES:
        raise BadInput(
            f"The timing of embedding models of type {family!r} cannot be estimated.",
            why="tllm can estimate the timing only for text-generation models and for embedding "
            "models with the same architectures",
            next_step="pass a timing file with --timing FILE, for example one that contains "
            '{"timing": {"step_s": 0.002, "prompt_token_s": 0.00001}}',
        )


def _count_kv_tokens(sized: SizePlan) -> int:
    """Return the KV cache capacity in tokens, for sequences of the planned length.

    The capacity depends on the length, because longer sequences need fewer bytes per token in
    models with sliding window attention.
    """
    plan, demand = sized.plans[0], sized.demand
    length = demand.input_len + demand.output_len
    num_bytes = kv_bytes_of_sequence(
        sized.facts.shape, length, demand.kv.bits, tp=plan.parallelism.tp
    )
    # Multiply by pp, because `kv_cache` is the size for one pipeline stage, which contains only
    # 1/pp of the layers.
    return int(plan.memory.kv_cache * plan.parallelism.pp / num_bytes * length)


def _check_tokenizer(checkpoint: Checkpoint, tools: Toolchain) -> None:
    package = TOKENIZER_PACKAGES[checkpoint.format]
    if package not in tools.versions:
        raise MissingPart(
            f"The {package} package is not installed.",
            why="the server needs the package to load this checkpoint's tokenizer",
            next_step=f"run `pip install {package}`",
        )


def _convert_tokenizer(checkpoint: Checkpoint, tools: Toolchain) -> tuple[BuildStep, ...]:
    if checkpoint.format == "hf":
        return ()
    command = (
        tools.python, "-m", "trtllm_serve_cli.engine_kinds.openvino.gguf_step",
        str(checkpoint.path), WORK, "--tokenizer-only",
    )  # fmt: skip
    title = "Extract the tokenizer from the GGUF file"
    return (BuildStep(title, command, outputs=_TOKENIZER_FILES),)
