"""Run an engine worker: `python -m tllm_runtime.worker`."""

from .worker_main import main

main()
