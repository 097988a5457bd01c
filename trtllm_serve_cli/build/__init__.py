"""From a checkpoint to an engine, planned first.

Takes a `BuildRequest`, the checkpoint and the options in it; `plan_build` gives the commands as
data, `build_engine` runs them, each in a process of its own with its output in a log. The engine's
folder appears whole or not at all, and says in its `engine.json` what it was made from: the same
plan finds it again. What need not be built (a TensorRT engine that is there, a checkpoint for vLLM
or TensorRT-LLM's LLM API) is described.
"""

from trtllm_serve_cli.build.describe import describe_pytorch, describe_tensorrt, describe_vllm
from trtllm_serve_cli.build.engine import Engine, find_engine, read_engine
from trtllm_serve_cli.build.kinds import EngineChoice, Machine, choose_engine_kind, look_at_machine
from trtllm_serve_cli.build.options import EngineOptions
from trtllm_serve_cli.build.plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.planning import AS_IT_IS, describe_checkpoint, find_tools, plan_build
from trtllm_serve_cli.build.run import build_engine
from trtllm_serve_cli.build.steps import BuildStep

__all__ = [
    "AS_IT_IS",
    "BuildPlan",
    "BuildRequest",
    "BuildStep",
    "Engine",
    "EngineChoice",
    "EngineOptions",
    "Machine",
    "Toolchain",
    "build_engine",
    "choose_engine_kind",
    "describe_checkpoint",
    "describe_pytorch",
    "describe_tensorrt",
    "describe_vllm",
    "find_engine",
    "find_tools",
    "look_at_machine",
    "plan_build",
    "read_engine",
]
