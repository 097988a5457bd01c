"""Complete the sampling parameters of a request to Triton.

Without `top_k`, TensorRT-LLM selects the most likely token. Without a seed, it generates the same
text each time. `tllm infer` therefore adds explicit values, so that setting a single option is
enough to enable sampling. Requests to an OpenAI-compatible API are not completed, because the API
has its own defaults.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtllm_serve_cli.client.generate import GenerateRequest

_SAMPLING = ("temperature", "top_k", "top_p", "seed")
# Possible names of the seed input, depending on the model repository layout. In the vllm layout,
# the seed is part of the `sampling_parameters` input.
_SEED_INPUTS = frozenset({"seed", "random_seed", "sampling_param_seed", "sampling_parameters"})


def draw_seed() -> int:
    """Return a random seed that every engine accepts: a non-negative INT64."""
    return random.getrandbits(63)


def complete_sampling(
    fields: Mapping[str, Any], draw: Callable[[], int] = draw_seed
) -> dict[str, Any]:
    """Return the sampling parameters to add to a request with these `fields`.

    If the request enables sampling, return a random seed, and values of `top_k` and `top_p` that do
    not exclude any tokens. Omit parameters that the request sets, and omit `top_p` if the request
    sets `top_k` above 0. Return an empty dictionary for beam search, for greedy decoding, and if
    the request sets no sampling parameter.
    """
    temperature, top_k, top_p, seed = (fields.get(name) for name in _SAMPLING)
    is_greedy = temperature == 0 or top_k == 1 or (not top_k and top_p == 0)
    has_beams = fields.get("beam_width") not in (None, 1)
    if is_greedy or has_beams or all(fields.get(name) is None for name in _SAMPLING):
        return {}
    added: dict[str, Any] = {}
    if top_k is None:
        added["top_k"] = 0
    if not top_k and top_p is None:
        added["top_p"] = 1.0
    if seed is None:
        added["seed"] = draw()
    return added


def complete_request(request: GenerateRequest, inputs: frozenset[str]) -> GenerateRequest:
    """Return the request with the parameters from `complete_sampling`.

    `inputs` are the model's inputs. A random seed is added only if the model accepts a seed.
    """
    fields = {name: getattr(request, name) for name in (*_SAMPLING, "beam_width")}
    added = complete_sampling(fields)
    if not has_seed(inputs):
        added.pop("seed", None)
    return dataclasses.replace(request, **added)


def has_seed(inputs: frozenset[str]) -> bool:
    """Return whether a model with these inputs accepts a seed.

    If the inputs are unknown, return True.
    """
    return not inputs or not inputs.isdisjoint(_SEED_INPUTS)
