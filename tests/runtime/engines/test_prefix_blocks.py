"""Test the estimate of reused prefix blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engines.prefix_blocks import PrefixBlocks

prompts = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def test_a_repeated_prompt_is_reused_except_its_last_token() -> None:
    blocks = PrefixBlocks(4, capacity=100)
    assert [blocks.add(range(9)), blocks.add(range(9)), blocks.add(range(8))] == [0, 2, 1]


def test_blocks_after_a_difference_are_not_reused() -> None:
    blocks = PrefixBlocks(2, capacity=100)
    blocks.add([1, 2, 3, 4, 5])
    assert blocks.add([9, 9, 3, 4, 5]) == 0


def test_without_capacity_nothing_is_reused() -> None:
    blocks = PrefixBlocks(2, capacity=0)
    assert [blocks.add(range(9)), blocks.add(range(9))] == [0, 0]


def test_the_least_recently_used_blocks_are_evicted_first() -> None:
    blocks = PrefixBlocks(1, capacity=2)
    blocks.add([1, 0])
    blocks.add([2, 0])
    blocks.add([1, 0])
    blocks.add([3, 0])
    assert [blocks.add([1, 0]), blocks.add([2, 0])] == [1, 0]


@given(st.lists(prompts, min_size=1, max_size=6), prompts)
def test_reused_is_the_longest_prefix_shared_with_any_earlier_prompt(
    earlier: list[list[int]], prompt: list[int]
) -> None:
    size = 3
    blocks = PrefixBlocks(size, capacity=1000)
    for each in earlier:
        blocks.add(each)

    def shared(other: list[int]) -> int:
        num_blocks = min((len(other) - 1) // size, (len(prompt) - 1) // size)
        equal = [prompt[: size * (n + 1)] == other[: size * (n + 1)] for n in range(num_blocks)]
        return equal.index(False) if False in equal else len(equal)

    assert blocks.add(prompt) == max(shared(each) for each in earlier)
