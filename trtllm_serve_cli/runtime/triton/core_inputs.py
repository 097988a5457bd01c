"""Define the inputs that text models forward to `tensorrt_llm`, by TensorRT-LLM version.

The version numbers come from inflight_batcher_llm/src/utils.h and model_instance_state.cc in
triton-inference-server/tensorrtllm_backend, tags v0.8.0 to v0.19.0. The first version with token
counts comes from NVIDIA/TensorRT-LLM#5445.
"""

from __future__ import annotations

# Maps text model inputs to `tensorrt_llm` inputs, where the names differ.
CORE_NAMES = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
}
EXCLUDE_INPUT = "exclude_input_in_output"
COUNTS = ("num_input_tokens", "num_output_tokens")
# Maps each input that older versions of `tensorrt_llm` lack to the first TensorRT-LLM version with
# this input. For older versions, the text model processes the input itself.
OWN_INPUTS = {
    EXCLUDE_INPUT: (0, 14),
    "return_num_input_tokens": (1, 0),
    "return_num_output_tokens": (1, 0),
}
