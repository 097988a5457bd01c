"""The engine worker process, and the sockets that connect Triton's models to the worker.

`python3 -m tllm_runtime.worker` starts a worker.
"""
