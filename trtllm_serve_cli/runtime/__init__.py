"""The code that runs inside Triton, copied next to each `model.py` of a rendered repository.

It requires only NumPy, the standard library and the engine's packages, and imports nothing else of
this project. A repository therefore works on machines where `tllm` is not installed.
"""
