"""The engine worker process, and the socket that connects Triton's models to the worker.

`python3 -m tllm_runtime.worker` starts a worker.
"""
