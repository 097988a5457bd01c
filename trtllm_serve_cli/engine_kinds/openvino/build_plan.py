"""Plan builds of OpenVINO engines from GGUF files or Hugging Face checkpoints."""

from __future__ import annotations

from trtllm_serve_cli.build.build_plan import (
    BuildPlan,
    BuildRequest,
    RequiredModule,
    Toolchain,
    embedding_facts,
    facts_of_engine,
)
from trtllm_serve_cli.build.build_step import WORK, BuildStep
from trtllm_serve_cli.build.engine_options import LIMITS, refuse_unsupported
from trtllm_serve_cli.build.fingerprint import fingerprint_of_facts
from trtllm_serve_cli.engine_kinds.describe_step import plan_describe_step
from trtllm_serve_cli.errors import BadInput

# Maps each checkpoint format to the packages that the build uses. The package versions are part of
# the engine's fingerprint.
TOOLS = {
    "gguf": ("openvino", "openvino-genai"),
    "hf": ("openvino", "openvino-tokenizers", "optimum-intel", "nncf", "transformers", "torch"),
}
_SUPPORTED = frozenset(("quantization", "max_beam_width", *LIMITS))
_EXPORTER = RequiredModule(
    "optimum.intel",
    what="Exporting a Hugging Face checkpoint requires optimum-intel.",
    next_step="run `pip install 'trtllm-serve-cli[convert]' && pip install --no-deps "
    "optimum-intel`, or import a GGUF file instead",
)
# The architectures that OpenVINO GenAI's GGUF reader supports.
_GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Maps the supported `--quantization` values to optimum-intel's weight formats.
WEIGHT_FORMATS = {"int8": "int8", "int4": "int4", "none": "fp16"}
_OPENVINO_FILES = tuple(
    f"{WORK}/openvino_{name}.xml" for name in ("model", "tokenizer", "detokenizer")
)
# Maps each weight format to the ratio of the engine's size to the checkpoint's size. The ratios
# include the scales of quantized weights, and assume 16-bit weights in Hugging Face checkpoints.
_SIZE_FACTORS = {"as in the GGUF": 1.05, "int8": 0.55, "int4": 0.35, "none": 1.05}


def choose_weights(
    checkpoint_format: str, quantization: str | None, *, is_embedding_model: bool = False
) -> str:
    """Return an engine's weight format: "as in the GGUF" or a `--quantization` value.

    Raise `BadInput` if the engine kind does not support the quantization.
    """
    if checkpoint_format == "gguf":
        if quantization is not None:
            raise BadInput(
                f"--quantization {quantization} cannot be used with a GGUF file.",
                why="the weights in the file are already quantized, and tllm does not convert them",
                next_step="omit --quantization, or choose a GGUF file with the required "
                "quantization",
            )
        return "as in the GGUF"
    # Embedding models are not quantized by default, because their embeddings are compared with
    # stored embeddings, possibly from other programs.
    weights = quantization or ("none" if is_embedding_model else "int8")
    if weights not in WEIGHT_FORMATS:
        raise BadInput(
            f"The openvino engine kind does not support --quantization {weights}.",
            why=f"the supported values are {', '.join(WEIGHT_FORMATS)}",
            next_step=(
                "choose a supported value, or choose an engine kind that runs on GPUs, "
                "for example --engine tensorrt"
            ),
        )
    return weights


def estimate_size(checkpoint_bytes: int, weights: str) -> int:
    """Return an engine's estimated size in bytes.

    `checkpoint_bytes` is the size of a GGUF file, or of a Hugging Face checkpoint with 16 bits per
    weight.
    """
    return int(checkpoint_bytes * _SIZE_FACTORS[weights])


def plan_build(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    """Return the build plan for the requested engine.

    Raise `BadInput` if the engine kind does not support the checkpoint or an option.
    """
    refuse_unsupported(request.options, request.kind, supported=_SUPPORTED)
    checkpoint = request.checkpoint
    weights = choose_weights(
        checkpoint.format,
        request.options.quantization,
        is_embedding_model=checkpoint.is_embedding_model,
    )
    make = (
        _plan_gguf(request, tools)
        if checkpoint.format == "gguf"
        else _plan_export(request, tools, weights)
    )
    facts = facts_of_engine(checkpoint, request.kind, weights) | embedding_facts(checkpoint)
    facts["tools"] = {
        name: tools.versions[name] for name in TOOLS[checkpoint.format] if name in tools.versions
    }
    fingerprint = fingerprint_of_facts(facts)
    describe = plan_describe_step(
        request, tools, title="Describe the engine", weights=weights, fingerprint=fingerprint
    )
    return BuildPlan(
        model_name=request.model_name,
        kind=request.kind,
        weights=weights,
        checkpoint=checkpoint,
        engine_dir=request.engine_dir,
        steps=(make, describe),
        fingerprint=fingerprint,
        estimated_bytes=estimate_size(checkpoint.size_bytes, weights),
        facts=facts,
        requires=(_EXPORTER,) if checkpoint.format == "hf" else (),
    )


def _plan_gguf(request: BuildRequest, tools: Toolchain) -> BuildStep:
    checkpoint = request.checkpoint
    if checkpoint.architecture not in _GGUF_ARCHITECTURES:
        raise BadInput(
            "The openvino engine kind does not support GGUF files with the "
            f"{checkpoint.architecture!r} architecture.",
            why=f"the supported architectures are {', '.join(_GGUF_ARCHITECTURES)}",
            next_step="import the model's Hugging Face checkpoint with -s hf:ORG/NAME instead",
        )
    command = (
        tools.python, "-m", "trtllm_serve_cli.engine_kinds.openvino.gguf_step",
        str(checkpoint.path), WORK,
    )  # fmt: skip
    title = "Convert the GGUF file to OpenVINO IR"
    return BuildStep(title, command, outputs=_OPENVINO_FILES)


def _plan_export(request: BuildRequest, tools: Toolchain, weights: str) -> BuildStep:
    # Set the library for embedding models, because the exporter would otherwise require the
    # sentence-transformers package.
    task = (
        ("feature-extraction", "--library", "transformers")
        if request.checkpoint.is_embedding_model
        else ("text-generation-with-past",)
    )
    command: tuple[str, ...] = (
        tools.python, "-m", "optimum.commands.optimum_cli", "export", "openvino",
        "--model", str(request.checkpoint.path), "--task", *task,
        "--weight-format", WEIGHT_FORMATS[weights],
    )  # fmt: skip
    if request.trust_remote_code:
        command += ("--trust-remote-code",)
    title = f"Export the checkpoint to OpenVINO IR with {weights} weights"
    return BuildStep(title.replace("none", "16-bit"), (*command, WORK), outputs=_OPENVINO_FILES)
