"""Inject a fault into each kind of message between an engine worker and its clients.

A proxy forwards the frames of one client, and loses, cuts, delays, swaps or duplicates one frame.
The client is the gateway, a text model, or the model that started the worker (the owner). After
each fault:

- each request has ended with its tokens or with an error that names the connection
- the worker has freed the slots of all requests
- the requests of another client are not affected
- the next request succeeds

With --full, the fault is also injected into earlier messages of the same kind.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.fakes.scripted_worker import COUNT, HANG
from tests.fakes.worker_thread import WorkerThread
from tests.faults.frame_proxy import FAULTS, Fault, FaultyLink, FrameProxy
from tests.faults.message_clients import NOT_CONNECTED, Answer, MessageClient, connected
from tests.faults.owned_worker import OwnedWorkers
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.worker.protocol import encode_frame
from trtllm_serve_cli.runtime.worker.worker_link import WorkerFailed
from trtllm_serve_cli.runtime.worker.worker_process import WorkerProcess

# The worker disconnects a client that has not answered this number of pings.
PINGS = {"ping_period_s": 0.005, "max_unanswered_pings": 60}
OVERDUE_S = 0.5
WHY = "the engine has another version"
# The kinds of messages, and which messages of the kind have a fault. The scenario sends three
# `submit`, one `cancel` and at least three `step` messages.
TARGETS = {"submit": (0, 1, 2), "cancel": (0,), "pong": (0, 3), "ready": (0,), "step": (0, 1, 2),
           "ping": (0, 3)}  # fmt: skip
CASES = [
    Fault(name, kind, at)
    for kind, ats in TARGETS.items()
    for at in ats
    for name in FAULTS
    # An overdue frame takes time, so test one of each kind: the last, after answered pings.
    if name != "overdue" or at == ats[-1]
]
# By default, each kind of message has each fault once.
DEFAULT_CASES = [case for case in CASES if case.at == TARGETS[case.kind][-1]]
TOKENS = [(10, 11, 12)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = CASES if metafunc.config.getoption("full") else DEFAULT_CASES
        metafunc.parametrize("case", cases, ids=str)


@pytest.fixture(scope="module")
def name() -> str:
    return f"tllm-test-{uuid.uuid4()}"


@pytest.fixture(scope="module")
def worker(name: str) -> Iterator[WorkerThread]:
    started = WorkerThread(name, **PINGS)
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
def test_requests_survive_or_fail_after_each_fault(
    worker: WorkerThread,
    name: str,
    kind: str,
    case: Fault,
    note_faults: Callable[[str, Iterable[str]], None],
) -> None:
    proxy = FrameProxy(f"{name} {kind} {case}", name, case, OVERDUE_S)
    with connected("model", name) as other:
        bystander = submit_when_open(other, HANG)
        with connected(kind, f"{name} {kind} {case}") as client:
            check_requests(client, proxy, case)
            wait_until(lambda: worker.engine.stats().active_requests == 1)
            wait_until(lambda: submit_when_open(client, COUNT).take() == TOKENS)
        assert submit_when_open(other, COUNT).take() == TOKENS
        other.cancel(bystander.id)
    wait_until(lambda: worker.engine.stats().active_requests == 0)
    proxy.close()
    note_faults("message", [case.name])


def test_owner_survives_each_fault(
    name: str, case: Fault, note_faults: Callable[[str, Iterable[str]], None]
) -> None:
    """The owner restarts its worker after a fault that breaks the connection."""
    link = FaultyLink(case, OVERDUE_S)
    workers = OwnedWorkers(f"{name} {case}", link, **PINGS)
    owner = WorkerProcess("scripted", {}, command=workers.command, first_backoff_s=0.001)
    try:
        owner.start()
    except WorkerFailed as error:
        assert case.kind == "ready" and "the engine worker did not start" in str(error)
        owner.start()
    check_requests(owner, link, case)
    if case.name == "overdue" and case.kind in ("ping", "pong"):
        wait_until(lambda: len(workers.engines) == 2)
    wait_until(lambda: submit_when_open(owner, COUNT).take() == TOKENS)
    wait_until(lambda: workers.engines[-1].stats().active_requests == 0)
    owner.close()
    workers.close()
    note_faults("message", [case.name])


def check_requests(client: MessageClient, link: FaultyLink, fault: Fault) -> None:
    """Send three requests and cancel one; assert that the others end as expected."""
    hanging = submit_when_open(client, HANG)
    running = [submit_when_open(client, COUNT), submit_when_open(client, COUNT, 2)]
    client.cancel(hanging.id)
    answers = [each.take() for each in running]
    assert link.has_injected.wait(60)
    assert fault.name != "overdue" or link.is_over.wait(60)
    assert check_answer(answers[0], TOKENS, fault)
    assert check_answer(answers[1], [(10, 11, 12), (20, 21, 22)], fault)


def check_answer(answer: object, expected: object, fault: Fault) -> bool:
    """Return whether an answer is complete, or failed with a clear error after a harmful fault."""
    if isinstance(answer, str):
        return fault.name != "late" and "engine worker" in answer and "retry" in answer
    return answer == expected


FAILED = [Fault(name, "failed") for name in FAULTS]


@pytest.mark.parametrize("fault", FAILED, ids=str)
def test_owner_of_a_worker_that_cannot_start_survives_each_fault(
    name: str, fault: Fault, note_faults: Callable[[str, Iterable[str]], None]
) -> None:
    link = FaultyLink(fault, OVERDUE_S)
    workers = OwnedWorkers(f"{name} {fault} owner", link, WHY, **PINGS)
    owner = WorkerProcess("scripted", {}, command=workers.command)
    with pytest.raises(WorkerFailed, match=f"the engine worker did not start: ({WHY}|exit code)"):
        owner.start()
    owner.start()
    assert submit_when_open(owner, COUNT).take() == TOKENS
    owner.close()
    workers.close()
    note_faults("message", [fault.name])


@pytest.mark.parametrize("kind", ["gateway", "model"])
@pytest.mark.parametrize("fault", FAILED, ids=str)
def test_client_of_a_worker_that_cannot_start_survives_each_fault(
    name: str, kind: str, fault: Fault, note_faults: Callable[[str, Iterable[str]], None]
) -> None:
    target, through = f"{name} {kind} {fault} target", f"{name} {kind} {fault}"
    proxy = FrameProxy(through, target, fault, OVERDUE_S)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{target}")
        listener.listen()
        with connected(kind, through) as client:
            first, _ = listener.accept()
            with first:
                first.sendall(encode_frame({"is": "failed", "why": WHY, "number": 0}))
            assert proxy.has_injected.wait(60)
            assert not client.is_open
            listener.close()
            worker = WorkerThread(target, **PINGS)
            assert submit_when_open(client, COUNT).take() == TOKENS
    worker.close()
    proxy.close()
    note_faults("message", [fault.name])
