"""From a checkpoint to an engine, planned first.

Takes a `Checkpoint` and `BuildOptions`; `plan_build` gives the commands as data, `build_engine`
runs them, each in a process of its own with its output in a log. The engine's folder appears whole
or not at all, and says in its `engine.json` what it was made from: the same plan finds it again.
What need not be built (a TensorRT engine that is there, a checkpoint for vLLM) is described.
"""

from trtllm_serve_cli.build.describe import describe_tensorrt, describe_vllm
from trtllm_serve_cli.build.engine import Engine, find_engine, read_engine
from trtllm_serve_cli.build.kinds import EngineChoice, Machine, choose_engine_kind, look_at_machine
from trtllm_serve_cli.build.plan import BuildOptions, BuildPlan, BuildStep, plan_build
from trtllm_serve_cli.build.run import build_engine

__all__ = [
    "BuildOptions",
    "BuildPlan",
    "BuildStep",
    "Engine",
    "EngineChoice",
    "Machine",
    "build_engine",
    "choose_engine_kind",
    "describe_tensorrt",
    "describe_vllm",
    "find_engine",
    "look_at_machine",
    "plan_build",
    "read_engine",
]
