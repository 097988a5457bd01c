"""Convert a generation request to sampling arguments for vLLM.

This module does not import `vllm`. The names and limits are from vllm/sampling_params.py in
vllm-project/vllm (0.26).
"""

from __future__ import annotations

from typing import Any

from ...engine import GenerationRequest, InvalidRequest
from ..sampling_arguments import PENALTIES, copy_set_fields, random_sampling, single_tokens

# Maps request fields to the largest value that vLLM accepts. For penalties, the smallest accepted
# value is the negative of the largest.
_LARGEST = {"temperature": 2.0, "presence_penalty": 2.0, "frequency_penalty": 2.0}
# The number of valid seeds. vLLM stores seeds as signed 64-bit integers, so the sum of a seed and a
# sequence index wraps around to 0 after 2**63 - 1.
_NUM_SEEDS = 2**63


def sampling_arguments(request: GenerationRequest) -> dict[str, Any]:
    """Return the `SamplingParams` arguments for all sequences of `request`.

    Omit the seed, the guide, the bad words and the prompt log probabilities, because `VllmEngine`
    sets these arguments. Except for top_k and top_p (see `random_sampling`), also omit unset
    optional fields, so that vLLM's defaults apply.
    """
    arguments: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "detokenize": False,
        **({"temperature": 0.0} if request.is_greedy else random_sampling(request)),
        **copy_set_fields(request, *PENALTIES, "min_tokens", "min_p"),
    }
    if stops := _stop_tokens(request):
        arguments["stop_token_ids"] = stops
    if request.logit_bias:
        arguments["logit_bias"] = dict(request.logit_bias)
    if request.return_log_probs or request.num_top_log_probs:
        # With 0, vLLM returns only the log probability of the sampled token.
        arguments["logprobs"] = request.num_top_log_probs
    return arguments


def seed_of(request: GenerationRequest, sequence: int) -> int | None:
    """Return the seed for one sequence of `request`, or None if the request has no seed.

    The sequences of a request have different seeds.
    """
    return None if request.seed is None else (request.seed + sequence) % _NUM_SEEDS


def check_servable(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` if the absolute value of a field exceeds its limit in `_LARGEST`."""
    for tensor, largest in _LARGEST.items():
        if abs(value := getattr(request, tensor) or 0.0) > largest:
            raise InvalidRequest(
                f"{tensor} is {value:g}, but vLLM accepts only values "
                + (
                    f"from {-largest:g} to {largest:g}"
                    if tensor in PENALTIES
                    else f"up to {largest:g}"
                )
            )


def _stop_tokens(request: GenerationRequest) -> list[int]:
    stops = single_tokens(request.stop_words)
    return stops if request.end_id is None else [request.end_id, *stops]
