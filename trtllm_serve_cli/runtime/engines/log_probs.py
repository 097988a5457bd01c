"""Replace log probabilities that are not finite, because JSON cannot represent them."""

from __future__ import annotations

# The smallest log probability in responses, as in vLLM's and TensorRT-LLM's own servers.
MIN_LOG_PROB = -9999.0


def clamp_log_prob(value: float) -> float:
    """Return `value`, but at least `MIN_LOG_PROB`.

    Engines return -inf for tokens that a guide or another parameter excludes. Also return
    `MIN_LOG_PROB` for NaN, which a model returns if its values overflow.
    """
    # `max` returns its first argument if the second one is NaN.
    return max(MIN_LOG_PROB, float(value))
