"""The models that Triton loads: each module contains the class `TritonPythonModel` of one model.

A rendered `model.py` imports its class from here. `tensorrt_llm` serves the engine. `text` serves
`ensemble`, `tensorrt_llm_bls` and the model under its own name. `llmapi` serves the llmapi layout.
"""
