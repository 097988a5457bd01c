"""Declare the `sim` engine kind, which simulates an engine."""

from __future__ import annotations

from trtllm_serve_cli.engine_kinds.kind import (
    Building,
    ContainerFit,
    Deployment,
    EngineKind,
    ModelView,
)
from trtllm_serve_cli.engine_kinds.sim.build_plan import TOKENIZER_PACKAGES, plan_build
from trtllm_serve_cli.engine_kinds.sim.described import describe_built, read_simulation_file
from trtllm_serve_cli.engine_kinds.sim.serving import SERVING


def _fit_container(model: ModelView) -> ContainerFit:
    has_openvino = (model.engine_path / "openvino_tokenizer.xml").exists()
    return ContainerFit(f"Triton and {'openvino-genai' if has_openvino else 'Transformers'}")


KIND = EngineKind(
    name="sim",
    summary="A simulated engine without weights, on any machine",
    building=Building(
        plan=plan_build,
        formats=frozenset(TOKENIZER_PACKAGES),
        tools=tuple(TOKENIZER_PACKAGES.values()),
        needs_weights=False,
        request_options=frozenset(("gpu", "timing")),
        describe_built=describe_built,
        read_details=read_simulation_file,
    ),
    serving=SERVING,
    deployment=Deployment(_fit_container),
)
