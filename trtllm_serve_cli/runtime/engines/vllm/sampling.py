"""From a generation request to vLLM's sampling parameters, as plain data.

Source of the names and of what is refused: vllm-project/vllm, vllm/sampling_params.py (0.26).
"""

from __future__ import annotations

from typing import Any

from ...engine import GenerationRequest, InvalidRequest
from ..sampling_arguments import PENALTIES, copy_set_fields, random_sampling, single_tokens

# Request -> the largest that vLLM takes, either side of zero for penalties.
_LARGEST = {"temperature": 2.0, "presence_penalty": 2.0, "frequency_penalty": 2.0}
# Seeds are kept as signed numbers of 64 bits.
_NUM_SEEDS = 2**63


def sampling_arguments(request: GenerationRequest) -> dict[str, Any]:
    """What `SamplingParams` takes for one sequence of `request`, but for seed, guide and bad words.

    What was not asked for is left to its defaults.
    """
    arguments: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "detokenize": False,
        **({"temperature": 0.0} if request.is_greedy else random_sampling(request)),
        **copy_set_fields(request, *PENALTIES, "min_tokens"),
    }
    if stops := _stop_tokens(request):
        arguments["stop_token_ids"] = stops
    if request.return_log_probs:
        # None of the likeliest beside the token itself.
        arguments["logprobs"] = 0
    return arguments


def seed_of(request: GenerationRequest, sequence: int) -> int | None:
    """The seed of one of the request's sequences, each of which has its own."""
    return None if request.seed is None else (request.seed + sequence) % _NUM_SEEDS


def check_servable(request: GenerationRequest) -> None:
    """Raise `InvalidRequest`, naming the tensor, for what is beyond vLLM's ranges."""
    for tensor, largest in _LARGEST.items():
        if abs(value := getattr(request, tensor) or 0.0) > largest:
            raise InvalidRequest(
                f"{tensor} is {value:g}; vLLM takes up to {largest:g}"
                + (f", and down to {-largest:g}" if tensor in PENALTIES else "")
            )


def _stop_tokens(request: GenerationRequest) -> list[int]:
    stops = single_tokens(request.stop_words)
    return stops if request.end_id is None else [request.end_id, *stops]
