"""The plan of a build, by engine kind."""

from __future__ import annotations

import sys

from trtllm_serve_cli.build.fingerprint import find_versions
from trtllm_serve_cli.build.openvino_plan import TOOLS, plan_openvino
from trtllm_serve_cli.build.plan import BuildPlan, BuildRequest, Toolchain


def plan_build(request: BuildRequest, tools: Toolchain) -> BuildPlan:
    """The steps to the engine that is wanted. Raises `BadInput` for what its kind cannot do."""
    return plan_openvino(request, tools)


def find_tools() -> Toolchain:
    """What builds here: this Python, and what it has installed."""
    packages = tuple(sorted({name for names in TOOLS.values() for name in names}))
    return Toolchain(sys.executable, find_versions(packages))
