"""The values that options take, for the command line, files and plans alike."""

from __future__ import annotations

from typing import Annotated, Literal

from trtllm_serve_cli.option_fields import Option, Within

Layout = Literal["inflight", "llmapi", "vllm"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
# Weights (w) and activations (a) in bits, and the method; upstream's words where it has one.
Quantization = Literal["none", "int8", "int4", "fp8", "nvfp4", "int4_awq", "w4a8_awq", "int8_sq"]
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
# Whether models may come and go while the server runs, in Triton's words.
ModelControlMode = Literal["none", "explicit", "poll"]
ContainerEngine = Literal["docker", "podman"]

# How our models write to the server's log, and whether a line for each request.
LogFormat = Literal["text", "json"]
RequestLogging = Literal["no", "yes", "prompts"]

# When the requests of a benchmark at a rate are sent.
ArrivalProcess = Literal["poisson", "constant", "gamma"]

# For which program metrics are prepared.
MetricsExport = Literal["prometheus", "grafana"]

# How a Kubernetes Service is reached.
ServiceType = Literal["ClusterIP", "NodePort", "LoadBalancer"]


COUNT = Within(1)
# A sequence is a token of the prompt and one of the answer.
SEQUENCE = Within(2)
PORT = Within(1, 65535)
SECONDS = Within(1)
VERBOSITY = Within(0, 3)

Count = Annotated[int, COUNT]
SequenceLength = Annotated[int, SEQUENCE]
Port = Annotated[int, PORT]
Seconds = Annotated[float, SECONDS]
Verbosity = Annotated[int, VERBOSITY]

# Options of several commands.
TensorParallelism = Annotated[Count, Option("Tensor parallelism, in GPUs.")]
PipelineParallelism = Annotated[Count, Option("Pipeline parallelism, in GPUs.")]
MoeTensorParallelism = Annotated[Count, Option("Tensor parallelism of the experts, in GPUs.")]
MoeExpertParallelism = Annotated[Count, Option("Expert parallelism, in GPUs.")]
DtypeOption = Annotated[
    Dtype,
    Option("Type of activations and of weights that are not quantized; auto is the checkpoint's."),
]
QuantizationOption = Annotated[
    Quantization,
    Option(
        "Format of the weights. int8 and int4 quantize only the weights, int8_sq is SmoothQuant. "
        "Default: int8 for openvino (a GGUF file keeps its own), none on a GPU."
    ),
]
KvCacheDtypeOption = Annotated[KvCacheDtype, Option("Type of the KV cache. Default: the engine's.")]
MaxSeqLenOption = Annotated[
    SequenceLength, Option("Longest prompt and response together, in tokens.")
]
