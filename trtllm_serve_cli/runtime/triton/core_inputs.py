"""Define the inputs that text models forward to each version of `tensorrt_llm`.

The versions come from inflight_batcher_llm/src/utils.h and model_instance_state.cc in
triton-inference-server/tensorrtllm_backend, tags v0.8.0 to v0.19.0. The version with token counts
comes from NVIDIA/TensorRT-LLM#5445.
"""

from __future__ import annotations

# Input of the text models -> input of `tensorrt_llm`, if the names differ.
CORE_NAMES = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
}
EXCLUDE_INPUT = "exclude_input_in_output"
COUNTS = ("num_input_tokens", "num_output_tokens")
# Input that a text model processes itself if `tensorrt_llm` lacks it -> first version of
# TensorRT-LLM that has the input.
OWN_INPUTS = {
    EXCLUDE_INPUT: (0, 14),
    "return_num_input_tokens": (1, 0),
    "return_num_output_tokens": (1, 0),
}
