"""What runs inside Triton, copied next to each `model.py` of a rendered model repository.

It needs NumPy, the standard library and the engine's own packages, and imports nothing else of
this project, so that a repository can be mounted where nobody has heard of `tllm`.
"""
