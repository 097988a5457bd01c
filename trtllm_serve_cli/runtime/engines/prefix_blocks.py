"""Estimate how many KV cache blocks a prompt reuses.

The `openvino` engine kind uses this estimate, because OpenVINO GenAI does not report the number of
reused blocks. The `sim` engine kind uses it to simulate KV cache reuse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixBlocks:
    """An LRU cache with up to `capacity` full blocks from earlier prompts.

    As in the engines themselves, a block is identified by its own tokens and all preceding tokens.
    The cache does not track the blocks that an engine evicts to make room for running requests. The
    estimate may therefore be too high if the engine's KV cache is full.
    """

    def __init__(self, tokens_per_block: int, capacity: int) -> None:
        self._tokens_per_block = tokens_per_block
        self._capacity = capacity
        self._known: OrderedDict[int, None] = OrderedDict()

    def add(self, token_ids: Sequence[int]) -> int:
        """Cache the full blocks of a prompt and return how many leading blocks were already cached.

        Engines always compute the last token, so the block that contains this token is neither
        counted nor cached.
        """
        size = self._tokens_per_block
        num_whole = (len(token_ids) - 1) // size if self._capacity else 0
        num_known = 0
        key = 0
        for index in range(num_whole):
            key = hash((key, *token_ids[index * size : (index + 1) * size]))
            if key in self._known and num_known == index:
                num_known += 1
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return num_known
