"""The code that runs inside Triton, copied next to each `model.py` in a rendered repository.

This package requires only NumPy, the standard library and the engine's packages. It imports no
other package of this project, so a repository works on machines where `tllm` is not installed.
"""
