"""What a model needs and what a GPU has, from small facts alone.

Takes the dict of a config.json; gives a `ModelShape`, which says how many parameters the model has
and where. Nothing here reads weights or needs a GPU.
"""

from trtllm_serve_cli.sizing.gpus import find_gpus
from trtllm_serve_cli.sizing.parallelism import Parallelism, check_parallelism
from trtllm_serve_cli.sizing.shape import (
    Experts,
    LatentAttention,
    ModelShape,
    SlidingWindow,
    parse_shape,
)

__all__ = [
    "Experts",
    "LatentAttention",
    "ModelShape",
    "Parallelism",
    "SlidingWindow",
    "check_parallelism",
    "find_gpus",
    "parse_shape",
]
