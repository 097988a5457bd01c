"""The engine worker, a separate process, and the socket between it and Triton's models.

`python3 -m tllm_runtime.worker` starts a worker.
"""
