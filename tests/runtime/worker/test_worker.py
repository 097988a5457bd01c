"""The worker, connected to the test by a pair of sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.scripted_worker import (
    COUNT,
    COUNT_CANCELLED,
    FAIL,
    HANG,
    LIMITS,
    RAISE,
    REJECT,
    ScriptedEngine,
)
from trtllm_serve_cli.runtime.engine import (
    OPTIONAL_FIELDS,
    EngineStats,
    GenerationRequest,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.worker.protocol import encode_frame, read_frame
from trtllm_serve_cli.runtime.worker.worker import Worker, load_engine

_TIMEOUT_S = 60.0


class Model:
    """The model's end of the socket, and the thread in which the worker runs."""

    def __init__(self, stats_period_s: float, engine: ScriptedEngine | None = None) -> None:
        self.sock, self._theirs = socket.socketpair()
        self.sock.settimeout(_TIMEOUT_S)
        engine = engine or ScriptedEngine()
        worker = Worker(engine, self._theirs, stats_period_s=stats_period_s)
        self.thread = threading.Thread(target=worker.run)
        self.thread.start()

    def submit(self, request_id: int, command: int, **fields: Any) -> None:
        values = {"input_ids": (command,), "max_new_tokens": 2, **fields}
        request = GenerationRequest(id=request_id, **values)
        self.send({"do": "submit", "request": request.to_message()})

    def send(self, message: dict[str, Any]) -> None:
        self.sock.sendall(encode_frame(message))

    def read(self) -> dict[str, Any]:
        message = read_frame(self.sock)
        assert message is not None
        return message

    def read_updates(self, count: int) -> list[SequenceUpdate]:
        """Read frames until they contain `count` updates."""
        updates: list[SequenceUpdate] = []
        while len(updates) < count:
            updates += [SequenceUpdate.from_wire(each) for each in self.read()["updates"]]
        return updates

    def close(self) -> None:
        self.sock.close()
        self.thread.join(_TIMEOUT_S)
        self._theirs.close()


@pytest.fixture
def model() -> Iterator[Model]:
    started = Model(stats_period_s=0.0)
    assert started.read()["is"] == "ready"
    yield started
    started.close()


def test_first_frame_contains_the_limits() -> None:
    model = Model(stats_period_s=0.0)
    first = model.read()
    model.close()
    assert first == {
        "is": "ready",
        "limits": {name: getattr(LIMITS, name) for name in LIMITS.__slots__},
        "optional_fields": list(OPTIONAL_FIELDS),
        "for_guests": {},
    }


def test_sends_tokens_step_by_step(model: Model) -> None:
    model.submit(7, COUNT, max_new_tokens=3)
    assert model.read_updates(3) == [
        SequenceUpdate(7, 0, (10,)),
        SequenceUpdate(7, 0, (11,)),
        SequenceUpdate(7, 0, (12,), "length"),
    ]


def test_sends_all_sequences_of_a_step_in_one_frame(model: Model) -> None:
    model.submit(7, COUNT, max_new_tokens=1, num_return_sequences=2)
    while not (updates := model.read()["updates"]):
        pass  # only statistics
    assert [SequenceUpdate.from_wire(each) for each in updates] == [
        SequenceUpdate(7, 0, (10,), "length"),
        SequenceUpdate(7, 1, (20,), "length"),
    ]


def test_cancels_a_request_in_the_engine(model: Model) -> None:
    model.submit(7, HANG)
    model.send({"do": "cancel", "id": 7})
    model.submit(8, COUNT_CANCELLED)
    assert model.read_updates(1) == [SequenceUpdate(8, 0, (1,), "stop")]


def test_ignores_cancelling_an_unknown_request(model: Model) -> None:
    model.send({"do": "cancel", "id": 7})
    model.submit(8, COUNT_CANCELLED)
    assert model.read_updates(1) == [SequenceUpdate(8, 0, (0,), "stop")]


@pytest.mark.parametrize(
    ("command", "fields", "why", "rejected"),
    [
        (COUNT, {"max_new_tokens": 0}, "request_output_len (max_tokens) is 0; request at "
         "least 1 token", True),
        (REJECT, {}, "the script rejects it", True),
        (RAISE, {}, "the engine could not accept the request: TypeError: the script is wrong",
         False),
        (FAIL, {}, "the script fails it", False),
    ],
)  # fmt: skip
def test_returns_why_a_request_cannot_run(
    model: Model, command: int, fields: dict[str, Any], why: str, rejected: bool
) -> None:
    model.submit(7, command, **fields)
    assert model.read_updates(1) == [SequenceUpdate(7, error=why, rejected=rejected)]


def test_invalid_request_does_not_affect_others(model: Model) -> None:
    model.submit(7, REJECT)
    model.submit(8, COUNT, max_new_tokens=1)
    updates = sorted(model.read_updates(2), key=lambda update: update.request_id)
    assert [update.finish_reason for update in updates] == [None, "length"]


def test_sends_statistics_while_idle(model: Model) -> None:
    idle = model.read()
    assert (idle["updates"], EngineStats(**idle["stats"])) == ([], EngineStats())


def test_sends_statistics_once_per_period_and_when_idle() -> None:
    model = Model(stats_period_s=3600.0)
    model.submit(7, COUNT, max_new_tokens=3)
    frames = [model.read() for _ in range(5)]
    model.close()
    assert ["stats" in frame for frame in frames] == [False, True, False, False, True]


class SlowEngine(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__()
        self.may_step = threading.Event()

    def step(self) -> list[SequenceUpdate]:
        assert self.may_step.wait(_TIMEOUT_S)
        return super().step()


def test_sends_statistics_before_the_first_step() -> None:
    """The first step may take seconds, and a shutdown must wait for the request."""
    engine = SlowEngine()
    model = Model(stats_period_s=3600.0, engine=engine)
    model.submit(7, COUNT, max_new_tokens=1)
    ready, before = model.read(), model.read()
    engine.may_step.set()
    after = model.read()
    model.close()
    assert ready["is"] == "ready"
    assert (before["updates"], before["stats"]["active_requests"]) == ([], 1)
    assert (len(after["updates"]), after["stats"]["active_requests"]) == (1, 0)


def test_worker_ends_when_the_socket_closes(model: Model) -> None:
    model.submit(7, HANG)
    model.close()
    assert not model.thread.is_alive()


def test_worker_ends_on_an_invalid_frame(model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    model.sock.sendall(b"\xff" * 4)
    model.thread.join(_TIMEOUT_S)
    expected = (
        "engine worker: the connection to a model failed: a frame of 4294967295 bytes exceeds "
        "67108864 bytes"
    )
    logged = capfd.readouterr().err
    assert (model.thread.is_alive(), logged.partition("] ")[2]) == (False, f"{expected}\n")


def test_rejects_an_unknown_engine_kind() -> None:
    with pytest.raises(
        ValueError, match=r"^unknown engine kind 'abacus'; correct the parameter engine_kind$"
    ):
        load_engine("abacus", {})
