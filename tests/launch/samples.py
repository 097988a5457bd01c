"""A model to launch, and the Tritons that may run it."""

from __future__ import annotations

from pathlib import Path

from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.repository.model.store import ImportedModel

MODEL = ImportedModel(
    name="mine",
    path=Path("/my models/mine"),
    layout="inflight",
    engine_kind="openvino",
    engine_path=Path("/engines/mine"),
    source="gguf:/mine.gguf",
    fingerprint="f1",
    created_at=0,
    models=("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "mine"),
)
EMBEDDED = TritonInstallation(
    Path("/wheel/bin/tritonserver"), "the wheel", Path("/wheel/python"), Path("/wheel/3.11/stub")
)
SYSTEM = TritonInstallation(Path("/opt/tritonserver/bin/tritonserver"), "/opt/tritonserver")
