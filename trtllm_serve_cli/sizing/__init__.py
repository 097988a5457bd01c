"""What a model needs and what a GPU has, from small facts alone.

Takes a source's config.json and index, or a GGUF file's header, and a card of `gpus.yaml`; gives a
`ModelShape`, which says how many parameters the model has and where, and a `SizePlan`: what is in
each GPU's memory, how many sequences it has room for, how fast it could go. Nothing here reads
weights, needs a GPU or writes anything but the hub's cache.
"""

from trtllm_serve_cli.sizing.facts import ModelFacts, read_facts
from trtllm_serve_cli.sizing.gpus import Gpu, choose_present, find_gpus, load_gpu
from trtllm_serve_cli.sizing.parallelism import Parallelism, check_parallelism
from trtllm_serve_cli.sizing.plan import ParallelPlan, SizeOptions, SizePlan, plan_size
from trtllm_serve_cli.sizing.shape import (
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
