"""Run models inside Triton and engines inside engine workers.

Rendering a model repository copies this package next to each `model.py`. The package requires only
NumPy, the standard library, Triton's `triton_python_backend_utils`, and the engine and tokenizer
packages. It imports no other package of this project, so a repository works on machines where
`tllm` is not installed.
"""
