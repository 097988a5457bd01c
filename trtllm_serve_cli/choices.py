"""Declare the option types that the command line, `tllm.yaml` and plan files share."""

from __future__ import annotations

from typing import Annotated, Literal

from trtllm_serve_cli.option_fields import Option, Within

Layout = Literal["inflight", "gpt", "llmapi", "vllm", "embedding"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
# w4a8 means 4-bit weights and 8-bit activations.
Quantization = Literal[
    "none",
    "int8",
    "int4",
    "fp8",
    "fp8_rowwise",
    "nvfp4",
    "int4_awq",
    "int4_gptq",
    "w4a8_awq",
    "int8_sq",
]
KvCacheDtype = Literal["auto", "fp8", "int8", "nvfp4"]
SpeculativeMode = Literal[
    "draft_tokens_external",
    "lookahead_decoding",
    "medusa",
    "explicit_draft_tokens",
    "eagle",
    "mtp",
    "ngram",
]
LaunchMode = Literal["local", "container", "mpi", "auto"]
# Triton's modes for loading and unloading models while the server is running.
ModelControlMode = Literal["none", "explicit", "poll"]
ContainerEngine = Literal["docker", "podman"]

# The log format of tllm's models and of the OpenAI-compatible API's access log.
LogFormat = Literal["text", "json"]
# Names of the tool call formats in `gateway/prompts/tools/formats.py`.
ToolParserName = Literal["hermes", "llama3", "mistral"]
# What tllm's models log for each request: nothing, one line, or one line with the prompt.
RequestLogging = Literal["no", "yes", "prompts"]

# Whether the OpenAI-compatible API requires an API key. `auto` requires a key once a key has been
# added.
KeyPolicy = Literal["auto", "on", "off"]

# Arrival processes for benchmarks with a request rate.
ArrivalProcess = Literal["poisson", "constant", "gamma"]

# The source of a model's default sampling parameters: the model's generation_config.json (`auto`)
# or OpenAI's defaults (`off`).
GenerationConfigSource = Literal["auto", "off"]

# Programs for which `tllm metrics export` writes configuration files.
MetricsExport = Literal["prometheus", "grafana"]

# Types of Kubernetes Services.
ServiceType = Literal["ClusterIP", "NodePort", "LoadBalancer"]


# The maximum value of counts and token lengths. It fits in the 32-bit fields of Triton and the
# engines.
LARGEST = 999_999_999
COUNT = Within(1, LARGEST)
# The minimum length is 2, because a sequence contains at least one prompt token and one response
# token.
SEQUENCE = Within(2, LARGEST)
PORT = Within(1, 65535)
SECONDS = Within(1)
VERBOSITY = Within(0, 3)

Count = Annotated[int, COUNT]
SequenceLength = Annotated[int, SEQUENCE]
Port = Annotated[int, PORT]
Seconds = Annotated[float, SECONDS]
Verbosity = Annotated[int, VERBOSITY]

# Types and help texts of options that several commands share.
TensorParallelism = Annotated[Count, Option("Number of GPUs for tensor parallelism.")]
PipelineParallelism = Annotated[Count, Option("Number of GPUs for pipeline parallelism.")]
MoeTensorParallelism = Annotated[
    Count, Option("Number of GPUs for tensor parallelism in MoE layers.")
]
MoeExpertParallelism = Annotated[
    Count, Option("Number of GPUs for expert parallelism in MoE layers.")
]
DtypeOption = Annotated[
    Dtype,
    Option(
        "Data type of activations and unquantized weights. `auto` uses the checkpoint's data "
        "type, except that TensorRT and vLLM convert float32 to a 16-bit type."
    ),
]
QuantizationOption = Annotated[
    Quantization,
    Option(
        "Weight quantization method. int8 and int4 are weight-only, int8_sq is SmoothQuant, and "
        "fp8_rowwise uses per-channel and per-token scales. GGUF files keep their quantization. "
        "Default: int8 for text generation models with the openvino engine kind, otherwise the "
        "checkpoint's quantization."
    ),
]
KvCacheDtypeOption = Annotated[
    KvCacheDtype, Option("KV cache data type. Default: chosen by the engine.")
]
MaxSeqLenOption = Annotated[
    SequenceLength, Option("Maximum sequence length (prompt and response) in tokens.")
]
