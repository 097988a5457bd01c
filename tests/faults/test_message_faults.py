"""Inject a fault into each kind of message between an engine worker and its clients.

A proxy forwards the frames of one client, the gateway or a text model, and loses, cuts, delays,
swaps or duplicates one frame. After each fault:

- each request has ended with its tokens or with an error that names the connection
- the worker has freed the slots of all requests
- the requests of another client are not affected
- the next request succeeds
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.scripted_worker import COUNT, HANG
from tests.fakes.worker_thread import WorkerThread
from tests.faults.frame_proxy import FAULTS, Fault, FrameProxy
from tests.faults.message_clients import NOT_CONNECTED, Answer, MessageClient, connected
from tests.waiting import wait_until

# The kinds of messages, and which messages of the kind have a fault. The scenario sends three
# `submit`, one `cancel` and at least three `step` messages.
TARGETS = {"submit": (0, 1, 2), "cancel": (0,), "pong": (0, 3), "ready": (0,), "step": (0, 1, 2),
           "ping": (0, 3)}  # fmt: skip
CASES = [Fault(name, kind, at) for kind, ats in TARGETS.items() for at in ats for name in FAULTS]
TOKENS = [(10, 11, 12)]


@pytest.fixture(scope="module")
def name() -> str:
    return f"tllm-test-{uuid.uuid4()}"


@pytest.fixture(scope="module")
def worker(name: str) -> Iterator[WorkerThread]:
    started = WorkerThread(name, ping_period_s=0.005)
    yield started
    started.close()


def submit_when_open(client: MessageClient, command: int, num_sequences: int = 1) -> Answer:
    answers: list[Answer] = []

    def has_submitted() -> bool:
        try:
            answers.append(Answer(client, command, num_sequences=num_sequences))
        except NOT_CONNECTED:
            return False
        return True

    wait_until(has_submitted)
    return answers[0]


@pytest.mark.parametrize("kind", ["gateway", "model"])
@pytest.mark.parametrize("fault", CASES, ids=str)
def test_requests_survive_or_fail_after_each_fault(
    worker: WorkerThread,
    name: str,
    kind: str,
    fault: Fault,
    note_faults: Callable[[str, int], None],
) -> None:
    proxy = FrameProxy(f"{name} {kind} {fault}", name, fault)
    with connected("model", name) as other:
        bystander = submit_when_open(other, HANG)
        with connected(kind, f"{name} {kind} {fault}") as client:
            hanging = submit_when_open(client, HANG)
            running = [submit_when_open(client, COUNT), submit_when_open(client, COUNT, 2)]
            client.cancel(hanging.id)
            answers = [each.take() for each in running]
            assert proxy.has_injected.wait(60)
            assert check_answer(answers[0], TOKENS, fault)
            assert check_answer(answers[1], [(10, 11, 12), (20, 21, 22)], fault)
            wait_until(lambda: worker.engine.stats().active_requests == 1)
            wait_until(lambda: submit_when_open(client, COUNT).take() == TOKENS)
        assert submit_when_open(other, COUNT).take() == TOKENS
        other.cancel(bystander.id)
    wait_until(lambda: worker.engine.stats().active_requests == 0)
    proxy.close()
    note_faults(f"{fault.name} {fault.kind}", 1)


def check_answer(answer: object, expected: object, fault: Fault) -> bool:
    """Return whether an answer is complete, or failed with a clear error after a harmful fault."""
    if isinstance(answer, str):
        return fault.name != "late" and "engine worker" in answer and "retry" in answer
    return answer == expected
