from .describe import describe_pytorch, describe_tensorrt, describe_vllm
from .engine import Engine, find_engine, read_engine
from .kinds import EngineChoice, Machine, choose_engine_kind, look_at_machine
from .options import EngineOptions
from .plan import BuildPlan, BuildRequest, Toolchain
from .planning import AS_IT_IS, describe_checkpoint, find_tools, plan_build
from .run import build_engine
from .sim import refuse_simulated
from .steps import BuildStep

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
    "refuse_simulated",
]
