"""The code that runs inside Triton, copied next to each `model.py` in a rendered repository.

This package requires only NumPy, the standard library, Triton's `triton_python_backend_utils`, and
the packages of the engine and the tokenizer. It imports no other package of this project, so a
repository works on machines where `tllm` is not installed.
"""
