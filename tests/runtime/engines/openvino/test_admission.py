"""Test which requests the pipeline of the engine kind openvino receives, and when."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.runtime.engines.openvino.admission import AdmissionQueue


def filled(max_sequences: int, *sizes: int) -> AdmissionQueue[int]:
    queue: AdmissionQueue[int] = AdmissionQueue(max_sequences)
    for request_id, size in enumerate(sizes):
        queue.add(request_id, size, request_id)
    return queue


def test_requests_are_admitted_in_order_while_slots_are_free() -> None:
    queue = filled(2, 1, 1, 1, 1)
    assert (queue.admit(), len(queue), queue.admit()) == ([0, 1], 2, [])
    queue.release(1)
    assert (queue.admit(), len(queue)) == ([2], 1)


def test_request_with_several_sequences_is_not_overtaken() -> None:
    queue = filled(4, 3, 2, 1)
    assert queue.admit() == [0]
    queue.release(0)
    assert queue.admit() == [1, 2]


def test_dropped_request_is_not_admitted() -> None:
    queue = filled(1, 1, 1, 1)
    assert queue.admit() == [0]
    queue.drop(1)
    queue.drop(0)
    assert (queue.admit(), len(queue)) == ([], 1)
    queue.release(0)
    assert queue.admit() == [2]


@given(st.integers(1, 6), st.lists(st.integers(1, 6), max_size=20), st.randoms())
def test_limit_holds_and_all_requests_are_admitted_in_order(
    max_sequences: int, sizes: list[int], random: Random
) -> None:
    sizes = [min(size, max_sequences) for size in sizes]
    queue = filled(max_sequences, *sizes)
    order, running = queue.admit(), set()
    running.update(order)
    while running:
        assert sum(sizes[each] for each in running) <= max_sequences
        queue.release(ended := random.choice(sorted(running)))
        running.remove(ended)
        admitted = queue.admit()
        order += admitted
        running.update(admitted)
    assert order == list(range(len(sizes)))
