"""Sample models to run as Slurm jobs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trtllm_serve_cli.launch.containers.deployment import Deployable

MODEL = Deployable(
    name="llama",
    text_model="llama",
    kind="tensorrt",
    models=("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "llama"),
    repository=Path("/tensorrtllm_backend/triton_model_repo"),
    folders=(Path("/tensorrtllm_backend/triton_model_repo"), Path("/engines/llama")),
    num_gpus=8,
    num_ranks=8,
    image=None,
)
PYTORCH = dataclasses.replace(MODEL, kind="pytorch", num_gpus=16, num_ranks=16, is_llm_api=True)
PLAIN = dataclasses.replace(MODEL, kind="openvino", num_gpus=0, num_ranks=1)
