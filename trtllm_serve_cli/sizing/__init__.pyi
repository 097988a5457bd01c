from .facts import ModelFacts, read_facts
from .gpus import Gpu, choose_present, find_gpus, load_gpu
from .parallelism import Parallelism, check_parallelism
from .plan import ParallelPlan, SizeOptions, SizePlan, plan_size
from .shape import (
    Experts,
    LatentAttention,
    ModelShape,
    SlidingWindow,
    parse_shape,
)

__all__ = [
    "Experts",
    "Gpu",
    "LatentAttention",
    "ModelFacts",
    "ModelShape",
    "ParallelPlan",
    "Parallelism",
    "SizeOptions",
    "SizePlan",
    "SlidingWindow",
    "check_parallelism",
    "choose_present",
    "find_gpus",
    "load_gpu",
    "parse_shape",
    "plan_size",
    "read_facts",
]
