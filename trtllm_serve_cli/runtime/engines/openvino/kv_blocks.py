"""Count the KV cache blocks that a request needs in OpenVINO GenAI."""

from __future__ import annotations

from ...engine import GenerationRequest

# The number of tokens in a KV cache block. OpenVINO's CPU plugin does not support other sizes.
TOKENS_PER_BLOCK = 32


def count_sequences(request: GenerationRequest) -> int:
    """Return the number of sequences that the engine generates for `request`."""
    return max(request.beam_width, request.num_return_sequences)


def count_needed_blocks(request: GenerationRequest) -> int:
    """Return the number of blocks that `request` needs if all sequences reach `max_new_tokens`."""
    num_sequences = count_sequences(request)
    return count_blocks(len(request.input_ids), request.max_new_tokens, num_sequences)


def count_blocks(num_input_tokens: int, num_output_tokens: int, num_sequences: int) -> int:
    """Return the number of blocks that a request's tokens occupy.

    `num_output_tokens` is the number of generated tokens per sequence. The sequences of a request
    share the prompt's full blocks.
    """
    shared, rest = divmod(num_input_tokens, TOKENS_PER_BLOCK)
    return shared + num_sequences * -(-(rest + num_output_tokens) // TOKENS_PER_BLOCK)
