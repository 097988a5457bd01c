"""The models that Triton loads. Each module defines a `TritonPythonModel` class.

A rendered `model.py` imports its class from one of these modules. `tensorrt_llm` runs the engine.
`text` implements `ensemble`, `tensorrt_llm_bls` and the model named by the user. `gpt` and `llmapi`
implement `tensorrt_llm` in the layouts of the same names. `vllm` implements the model in the vllm
layout.
"""
