"""Explanations of real error messages from public bug reports.

`report` is the source of a message: a repository on GitHub and the number of its issue.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.build.explain import Explanation, explain_failure

TRTLLM = "NVIDIA/TensorRT-LLM"
OPTIMUM = "huggingface/optimum-intel"
TRANSFORMERS = "huggingface/transformers"
REPORTS = [
    (
        "gpu_memory", f"{TRTLLM}#1783",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 514.00 MiB. GPU 0 has "
        "a total capacity of 79.14 GiB of which 21.25 MiB is free.",
    ),
    (
        "gpu_memory", f"{TRTLLM}#1533",
        "Detailed export error: CUDA out of memory. Tried to allocate 1.75 GiB.",
    ),
    (
        "gpu_memory", f"{TRTLLM}#346",
        "[11/10/2023-06:30:40] [TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error "
        "Code 2: OutOfMemory (no further information)\n"
        "[11/10/2023-06:30:40] [TRT] [W] Requested amount of GPU memory (24793579520 bytes) could "
        "not be allocated.\n"
        "[11/10/2023-06:30:40] [TRT-LLM] [E] Engine building failed, please check the error log.",
    ),
    (
        "gpu_memory", f"{TRTLLM}#2398",
        "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, "
        "mCudaStream->get()): out of memory (/tmp/tensorrt_llm/runtime/tllmBuffers.h:117)",
    ),
    (
        "gpu_memory", "NVIDIA/TensorRT#477",
        "[E] [TRT] safeRuntime.cpp (25) - Cuda Error in "
        "nvinfer1::internal::DefaultAllocator::allocate: 2 (out of memory)",
    ),
    (
        "host_memory", f"{TRTLLM}#2539",
        "Total time of reading and converting 52.12702465057373 s\nKilled",
    ),
    (
        "shared_memory", "triton-inference-server/server#6195",
        "UNAVAILABLE: Internal: Unable to initialize shared memory key "
        "'triton_python_backend_shm_region_3' to requested size (67108864 bytes). If you are "
        "running Triton inside docker, use '--shm-size' flag to control the shared memory region "
        "size. Each Python backend model instance requires at least 64MBs of shared memory. Error: "
        "No space left on device",
    ),
    (
        "shared_memory", "triton-inference-server/server#6156",
        "Thread [0] had error: Failed to increase the shared memory pool size for key "
        "'triton_python_backend_shm_region_2' to 671088640 bytes. If you are running Triton inside "
        "docker, use '--shm-size' flag to control the shared memory region size. Error: No space "
        "left on device",
    ),
    (
        "precision", f"{TRTLLM}#1428",
        "[04/09/2024-16:26:41] [TRT] [E] 9: [standardEngineBuilder.cpp::buildEngine::2266] Error "
        "Code 9: Internal Error (Networks with FP8 precision require hardware with FP8 support.)\n"
        "[04/09/2024-16:26:41] [TRT-LLM] [E] Engine building failed, please check the error log.",
    ),
    (
        "precision", f"{TRTLLM}#4599",
        "RuntimeError: Unsupported SM version for FP8 block scaling GEMM",
    ),
    (
        "gpu_too_old", f"{TRTLLM}#1515",
        "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: Unsupported architecture "
        "(/tensorrt_llm/cpp/tensorrt_llm/kernels/contextFusedMultiHeadAttention/fmhaRunner.cpp:89)",
    ),
    (
        "gpu_too_old", f"{TRTLLM}#484",
        "[TensorRT-LLM][ERROR] CUDA runtime error in cub::DeviceSegmentedRadixSort: no kernel "
        "image is available for execution on the device (samplingTopPKernels.cu:1078)",
    ),
    (
        "engine_of_another_device", "run-llama/llama_index#12318",
        "[03/27/2024-11:09:02] [TRT] [E] 6: The engine plan file is generated on an incompatible "
        "device, expecting compute 8.0 got compute 8.9, please rebuild.",
    ),
    (
        "engine_of_another_version", "triton-inference-server/tensorrtllm_backend#190",
        "[TensorRT-LLM][ERROR] 1: [stdArchiveReader.cpp::stdArchiveReaderInitCommon::47] Error "
        "Code 1: Serialization (Serialization assertion stdVersionRead == kSERIALIZATION_VERSION "
        "failed.Version tag does not match. Note: Current Version: 226, Serialized Engine Version: "
        "228)",
    ),
    (
        "engine_of_another_version", "NVIDIA/TensorRT#2195",
        "[08/01/2022-15:41:44] [TRT] [E] 1: [stdArchiveReader.cpp::StdArchiveReader::35] Error "
        "Code 1: Serialization (Serialization assertion safeVersionRead == "
        "safeSerializationVersion failed.)",
    ),
    (
        "engine_of_another_version", "NVIDIA/TensorRT#574",
        "ERROR: The engine plan file is not compatible with this version of TensorRT, expecting "
        "library version 5.1.5 got 0.0.0, please rebuild.",
    ),
    (
        "engine_unreadable", f"{TRTLLM}#1838",
        "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine.",
    ),
    (
        "scripts_of_another_version", f"{TRTLLM}#1890",
        "TypeError: Mapping.__init__() got an unexpected keyword argument 'moe_tp_size'",
    ),
    (
        "scripts_of_another_version", f"{TRTLLM}#1950",
        "ImportError: /usr/local/lib/python3.10/dist-packages/tensorrt_llm/"
        "bindings.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c106detail14",
    ),
    (
        "scripts_of_another_version", f"{TRTLLM}#2143",
        "trtllm-build: error: unrecognized arguments: --max_multimodal_len",
    ),
    (
        "architecture", f"{TRTLLM}#1026",
        "RuntimeError: Unsupported model architecture: LlamaForCausalLM",
    ),
    (
        "architecture", f"{OPTIMUM}#1137",
        "ValueError: Trying to export a qwen2-vl model, that is a custom or unsupported "
        "architecture, but no custom export configuration was passed as `custom_export_configs`.",
    ),
    (
        "transformers_too_old", f"{TRTLLM}#4684",
        "ValueError: The checkpoint you are trying to load has model type qwen3 but Transformers "
        "does not recognize this architecture. This could be because of an issue with the "
        "checkpoint, or because your version of Transformers is out of date.",
    ),
    (
        "gated", f"{TRANSFORMERS}#28894",
        "Cannot access gated repo for url https://huggingface.co/nvidia/nemotron-3-8b-base-4k/"
        "resolve/main/.gitattributes.",
    ),
    (
        "gated", f"{TRANSFORMERS}#31367",
        "OSError: You are trying to access a gated repo.\n"
        "Make sure to have access to it at https://huggingface.co/mistralai/Mixtral-8x7B-v0.1.\n"
        "403 Client Error. (Request ID: Root=1-666818ee-6abafae6007c6222061fad0c)\n"
        "\nCannot access gated repo for url https://huggingface.co/mistralai/Mixtral-8x7B-v0.1.",
    ),
    (
        "calibration_data", "NVIDIA/TensorRT-Edge-LLM#29",
        "huggingface_hub.errors.HfUriError: Invalid HF URI 'hf://datasets/cnn_dailymail@96df5e686"
        "/.huggingface.yaml'. Repository id must be 'namespace/name', got 'cnn_dailymail'.",
    ),
    (
        "corrupt_checkpoint", "Comfy-Org/ComfyUI#3225",
        "safetensors_rust.SafetensorError: Error while deserializing header: "
        "MetadataIncompleteBuffer",
    ),
    (
        "mpi_missing", f"{TRTLLM}#167",
        "ImportError: libmpi.so.12: cannot open shared object file: No such file or directory",
    ),
    (
        "mpi_failed", f"{TRTLLM}#1950",
        "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp "
        "(tensorrt_llm/runtime/worldConfig.cpp:99)",
    ),
    (
        "driver_missing", "abetlen/llama-cpp-python#1169",
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory\n"
        "During handling of the above exception, another exception occurred:\n"
        "RuntimeError: Failed to load shared library",
    ),
    (
        "driver_too_old", "zai-org/ChatGLM3#100",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11060). Please "
        "update your GPU driver by downloading and installing a new version",
    ),
    (
        "driver_too_old", "nagadomi/nunif#702",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
    ),
    (
        "driver_too_old", f"{TRTLLM}#1806",
        "CUDA runtime error in cudaGetDevice(&device): forward compatibility was attempted on non "
        "supported HW",
    ),
    (
        "too_few_gpus", f"{TRTLLM}#1063",
        "RuntimeError: [TensorRT-LLM][ERROR] CUDA runtime error in cudaSetDevice(device): invalid "
        "device ordinal (tensorrt_llm/runtime/utils/sessionUtils.cpp:34)",
    ),
    (
        "container_gpu", "NVIDIA/nvidia-docker#1034",
        'docker: Error response from daemon: could not select device driver "" with capabilities: '
        "[[gpu]].\nERRO[0000] error waiting for container: context canceled",
    ),
    (
        "container_gpu", "NVIDIA/nvidia-container-toolkit#146",
        "Error: error setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
    ),
    (
        "container_gpu", "NVIDIA/nvidia-container-toolkit#885",
        "Error: setting up CDI devices: failed to inject devices: failed to stat CDI host device "
        '"/dev/dri/renderD129": no such file or directory',
    ),
    (
        "library_missing", f"{TRTLLM}#6102",
        "ImportError: libpython3.10.so.1.0: cannot open shared object file: No such file or "
        "directory",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "report", "output"), REPORTS, ids=[f"{name}-{report}" for name, report, _ in REPORTS]
)
def test_reported_failure_is_explained(name: str, report: str, output: str) -> None:
    explanation = explain_failure(1, output.splitlines())
    assert (explanation and explanation.name, explanation and explanation.line in output) == (
        name,
        True,
    ), report


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("disk", "OSError: [Errno 28] No space left on device"),
        ("disk", "RuntimeError: [enforce fail] PytorchStreamWriter failed writing file data/19"),
        ("file_not_written", "RuntimeError: basic_ios::clear: iostream error"),
        ("host_memory", "MemoryError"),
        ("host_memory", "terminate called after throwing an instance of 'std::bad_alloc'"),
        ("host_memory", "/usr/bin/x: line 3:   712 Killed                  python3 convert.py"),
        ("shared_memory", "ERROR: Unexpected bus error: insufficient shared memory (shm)."),
        ("module_missing", "ModuleNotFoundError: No module named 'modelopt'"),
        ("module_missing", "/venv/bin/python: No module named optimum.commands.optimum_cli"),
        ("mpi_missing", "ModuleNotFoundError: No module named 'mpi4py'"),
        ("network", "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
        ("architecture", "KeyError: 'MambaForCausalLM'"),
        ("transformers_too_old", "KeyError: 'qwen3'"),
        (
            "container_daemon",
            "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
        ),
        (
            "examples_missing",
            "python3: can't open file '/app/examples/llama/convert_checkpoint.py': [Errno 2] No "
            "such file or directory",
        ),
    ],
)
def test_plain_message_is_explained(name: str, line: str) -> None:
    explanation = explain_failure(1, ["Traceback (most recent call last):", line])
    assert explanation and explanation.name == name


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: no such layer",
        "[TRT] [W] Tactic Device request: 157500MB Available: 40339MB. Device memory is "
        "insufficient to use tactic.",
        "[TRT-LLM] [I] fp8 TFLOPS: 0",
        "Some parameters are on the meta device because they were offloaded to the cpu.",
        "KeyError: 'architecture'",
        '  File "/app/MemoryErrors/killed.py", line 3, in Killed',
    ],
)
def test_unknown_line_is_not_explained(line: str) -> None:
    assert explain_failure(1, [line]) is None


def test_only_listed_failures_are_explained() -> None:
    lines = ["CUDA out of memory", "No space left on device"]
    explanation = explain_failure(1, lines, among=("gpu_memory",))
    assert explanation and explanation.name == "gpu_memory"


def test_signals_of_other_failures_are_not_explained() -> None:
    lines = ["CUDA out of memory"]
    explanation = explain_failure(-signal.SIGKILL, lines, among=("gpu_memory",))
    assert explanation and explanation.name == "gpu_memory"
    assert explain_failure(-signal.SIGKILL, (), among=("gpu_memory",)) is None


def test_last_known_line_is_explained() -> None:
    explanation = explain_failure(1, ["CUDA out of memory", "No space left on device", "good bye"])
    assert explanation and (explanation.name, explanation.line) == (
        "disk",
        "No space left on device",
    )


@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGKILL])
def test_signal_takes_precedence_over_the_output(code: int) -> None:
    assert explain_failure(code, ["CUDA out of memory, trying again"]) == Explanation(
        "host_memory",
        "the process was killed, probably because the machine ran out of memory",
        "close other programs, build with fewer workers, add swap space, or use a smaller model",
    )


@given(st.integers(-64, 255), st.lists(st.text(max_size=60), max_size=5))
def test_any_output_is_accepted(code: int, lines: list[str]) -> None:
    explanation = explain_failure(code, lines)
    assert explanation is None or (explanation.why and explanation.next_step)
