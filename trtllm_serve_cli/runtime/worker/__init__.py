"""The engine worker, a process of its own, and the socket between it and the models of Triton.

`python3 -m tllm_runtime.worker` starts a worker.
"""
