"""Run an engine worker: `python -m tllm_runtime.worker`."""

from .worker import main

main()
