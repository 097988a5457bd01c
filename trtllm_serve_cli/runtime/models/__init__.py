"""The models that Triton loads. Each module defines a class `TritonPythonModel`.

A rendered `model.py` imports its class from one of these modules. `tensorrt_llm` runs the engine.
`text` implements `ensemble`, `tensorrt_llm_bls` and the model with the name that the user chose.
`gpt` and `llmapi` implement `tensorrt_llm` in the layouts with these names. `vllm` implements the
model in the vllm layout.
"""
