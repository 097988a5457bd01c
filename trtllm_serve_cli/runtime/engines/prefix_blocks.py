"""How much of a prompt the KV cache holds already, for engines that do not tell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixBlocks:
    """The whole blocks of the prompts seen, the least recently used forgotten beyond `capacity`.

    This is how engines with block reuse keep them: a block is known by its own tokens and all
    before it. What an engine had to evict for answers in flight is not known here, so under
    pressure the count may be too high.
    """

    def __init__(self, tokens_per_block: int, capacity: int) -> None:
        self._tokens_per_block = tokens_per_block
        self._capacity = capacity
        self._known: OrderedDict[int, None] = OrderedDict()

    def add(self, token_ids: Sequence[int]) -> int:
        """How many leading blocks of this prompt were known; all its whole blocks are now.

        The last token is always computed, so a prompt that ends with a block does not reuse it.
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
