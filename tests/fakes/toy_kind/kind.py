"""A complete engine kind in one folder: `toy` returns the prompt in reverse order.

This module is the host part; `runtime/` is copied to the model as `tllm_runtime/engines/toy`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.kind import ContainerFit, Deployment, EngineKind, Serving
from trtllm_serve_cli.engine_kinds.served_checkpoint import serve_checkpoint
from trtllm_serve_cli.engine_kinds.serving import (
    WORKER_PARAMETERS,
    ServingOptions,
    choose_context_length,
)

_MAX_BATCH_SIZE = 4


def _plan_values(
    engine: Engine, options: ServingOptions, overrides: Mapping[str, str]
) -> dict[str, str]:
    return {
        "triton_max_batch_size": str(_MAX_BATCH_SIZE),
        "max_num_seqs": str(_MAX_BATCH_SIZE),
        "max_num_tokens": str(options.max_num_tokens or 64),
        "max_seq_len": str(choose_context_length(engine, options, overrides)),
        "tokenizer_dir": str(engine.path),
        "engine_dir": str(engine.path),
    }


KIND = EngineKind(
    name="toy",
    summary="Returns the prompt in reverse order",
    building=dataclasses.replace(
        serve_checkpoint(lambda request, tools, quantized: {}, "A toy requires no engine."),
        needs_weights=False,
    ),
    serving=Serving(("inflight",), WORKER_PARAMETERS, _plan_values),
    deployment=Deployment(lambda model: ContainerFit("Triton and Transformers")),
    runtime_folder=Path(__file__).with_name("runtime"),
)
