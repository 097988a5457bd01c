"""The models that Triton loads. Each module defines a `TritonPythonModel` class.

A rendered `model.py` imports its class from one of these modules. `tensorrt_llm` runs the engine.
`text` implements `ensemble`, `tensorrt_llm_bls` and the model named by the user. `preprocessing`
and `postprocessing` implement the models of the same names. `gpt` and `llmapi` implement
`tensorrt_llm` in the layouts of the same names. `vllm` and `embedding` implement the models in the
vllm and embedding layouts.
"""
