"""The worker, connected to the test by a pair of sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import another_user
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
from tests.fakes.worker_thread import WorkerThread
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.engine import (
    OPTIONAL_FIELDS,
    EngineStats,
    GenerationRequest,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.pulse import (
    PULSES_VARIABLE,
    Pulse,
    PulseFile,
    PulseState,
    PulseWriter,
    read_pulses,
)
from trtllm_serve_cli.runtime.worker import protocol
from trtllm_serve_cli.runtime.worker.abstract_socket import connect
from trtllm_serve_cli.runtime.worker.protocol import ProtocolError, encode_frame, read_frame
from trtllm_serve_cli.runtime.worker.worker import Worker
from trtllm_serve_cli.runtime.worker.worker_main import load_engine

_TIMEOUT_S = 60.0


class Model:
    """The model's end of the socket, and the thread in which the worker runs."""

    def __init__(
        self,
        stats_period_s: float,
        engine: ScriptedEngine | None = None,
        make_socket: type[socket.socket] = socket.socket,
        **options: Any,
    ) -> None:
        self.sock, theirs = socket.socketpair()
        self._theirs = make_socket(fileno=theirs.detach())
        self.sock.settimeout(_TIMEOUT_S)
        self.engine = engine or ScriptedEngine()
        options = {"stats_period_s": stats_period_s, "ping_period_s": 3600.0, **options}
        worker = Worker(self.engine, self._theirs, **options)
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


class ClosedInTheMeantime(socket.socket):
    """A socket that another thread closes just before it is read."""

    def recv(self, *arguments: Any) -> bytes:
        self.close()
        return super().recv(*arguments)


@pytest.fixture
def model() -> Iterator[Model]:
    started = Model(stats_period_s=0.0)
    assert started.read()["is"] == "ready"
    yield started
    started.close()


def test_first_frame_contains_the_limits_and_the_stages() -> None:
    model = Model(stats_period_s=0.0, stages_s={"load_engine": 1.5})
    first = model.read()
    model.close()
    assert first == {
        "is": "ready",
        "limits": {name: getattr(LIMITS, name) for name in LIMITS.__slots__},
        "optional_fields": list(OPTIONAL_FIELDS),
        "for_guests": {},
        "stages_s": {"load_engine": 1.5},
        "number": 0,
    }


@another_user.needs_root
def test_refuses_a_client_of_another_user() -> None:
    name = f"tllm-test-{uuid.uuid4()}"
    request = GenerationRequest(1, (HANG,), 2)
    submit = encode_frame({"do": "submit", "request": request.to_message()})
    worker = WorkerThread(name)
    assert another_user.connect(name, submit) in another_user.REFUSED
    with connect(name, _TIMEOUT_S) as sock:
        first = read_frame(sock)
        assert first is not None and first["is"] == "ready"
    assert worker.engine.stats().active_requests == 0
    worker.close()


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
        (RAISE, {}, "the engine could not accept the request: TypeError: the script is wrong; "
         "see the server's log", False),
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


class LongUpdates(ScriptedEngine):
    """Repeats each token as often as the square of the prompt's length."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[int, int] = {}

    def submit(self, request: GenerationRequest) -> None:
        self._counts[request.id] = len(request.input_ids) ** 2
        super().submit(request)

    def step(self) -> list[SequenceUpdate]:
        return [
            replace(each, token_ids=each.token_ids * self._counts[each.request_id])
            for each in super().step()
        ]


@pytest.fixture
def short_frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """Start a worker whose messages contain at most 2,000 bytes."""
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 2000)
    started = Model(stats_period_s=0.0, engine=LongUpdates())
    assert started.read()["is"] == "ready"
    yield started
    started.close()


def test_update_that_is_too_long_fails_only_its_request(short_frames: Model) -> None:
    short_frames.submit(7, COUNT, input_ids=(COUNT,) * 30)
    short_frames.submit(8, COUNT, max_new_tokens=2)
    updates = short_frames.read_updates(3)
    short_frames.submit(9, COUNT_CANCELLED)
    (failed,) = [each for each in updates if each.request_id == 7]
    assert (failed.error or "").startswith(
        "the response of an engine step cannot be sent, because the frame is "
    )
    assert [each for each in updates if each.request_id == 8] == [
        SequenceUpdate(8, 0, (10,)),
        SequenceUpdate(8, 0, (11,), "length"),
    ]
    assert short_frames.read_updates(1) == [SequenceUpdate(9, 0, (1,), "stop")]


def test_updates_that_are_too_long_together_are_sent_in_several_frames(short_frames: Model) -> None:
    short_frames.submit(7, COUNT, input_ids=(COUNT,) * 20, num_return_sequences=4)
    updates = short_frames.read_updates(8)
    assert [each.token_ids for each in updates] == [
        (10 * sequence + step,) * 400 for step in (0, 1) for sequence in (1, 2, 3, 4)
    ]
    short_frames.submit(9, COUNT_CANCELLED)
    assert short_frames.read_updates(1) == [SequenceUpdate(9, 0, (0,), "stop")]


def test_worker_ends_when_the_socket_closes(model: Model) -> None:
    model.submit(7, HANG)
    model.close()
    assert not model.thread.is_alive()


def test_worker_ends_on_an_invalid_frame(model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    model.sock.sendall(b"\xff" * 4)
    model.thread.join(_TIMEOUT_S)
    expected = (
        "engine worker: the connection to a client failed: the frame is 4294967295 bytes long, "
        "but the maximum is 67108864 bytes"
    )
    assert not model.thread.is_alive()
    assert f"] {expected}\n" in capfd.readouterr().err


def test_end_of_a_socket_that_the_worker_closed_is_no_failure(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = Model(stats_period_s=0.0, make_socket=ClosedInTheMeantime)
    model.thread.join(_TIMEOUT_S)
    assert not model.thread.is_alive()
    assert os.strerror(errno.EBADF) not in capfd.readouterr().err
    model.close()


def test_rejects_an_unknown_engine_kind() -> None:
    with pytest.raises(
        ValueError, match=r"^unknown engine kind 'abacus'; set the engine_kind parameter to one of "
    ):
        load_engine("abacus", {})


def test_owner_that_does_not_read_does_not_block_other_clients(tmp_path: Path) -> None:
    name = str(tmp_path / "clients")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        owner = Model(stats_period_s=0.0, listener=listener, send_timeout_s=0.1)
        assert owner.read()["is"] == "ready"
        owner.submit(7, COUNT, max_new_tokens=4000)
        owner.submit(8, HANG)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
            client.settimeout(_TIMEOUT_S)
            # The worker accepts the client after it has stopped waiting for the owner.
            wait_until(lambda: owner.engine.stats().iteration == 2)
            assert (read_frame(client) or {})["is"] == "ready"
            request = GenerationRequest(id=1, input_ids=(COUNT,), max_new_tokens=1)
            client.sendall(encode_frame({"do": "submit", "request": request.to_message()}))
            assert (read_frame(client) or {})["updates"][0][2] == [10]
            # The worker closes its end of the connection.
            client.shutdown(socket.SHUT_WR)
            assert read_frame(client) is None
        # The owner reaches the end of the connection after the data that it has not read.
        with contextlib.suppress(ProtocolError):
            while read_frame(owner.sock) is not None:
                pass
        owner.close()
        listener.shutdown(socket.SHUT_RDWR)
    assert not owner.thread.is_alive()


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"do": "submit"},
        {"do": "cancel"},
        {"do": "cancel", "id": []},
        {"do": "submit", "request": {}},
    ],
)
def test_invalid_command_of_a_client_ends_only_its_connection(
    tmp_path: Path, command: dict[str, Any]
) -> None:
    name = str(tmp_path / "clients")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        owner = Model(stats_period_s=60.0, listener=listener)
        assert owner.read()["is"] == "ready"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
            client.settimeout(_TIMEOUT_S)
            assert (read_frame(client) or {})["is"] == "ready"
            client.sendall(encode_frame(command))
            assert read_frame(client) is None
        owner.submit(1, COUNT)
        assert owner.read_updates(1)[0].request_id == 1
        owner.close()
        listener.shutdown(socket.SHUT_RDWR)


def test_client_that_stops_answering_pings_is_disconnected(tmp_path: Path) -> None:
    name = str(tmp_path / "clients")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        owner = Model(stats_period_s=60.0, listener=listener, ping_period_s=0.001)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
            client.settimeout(_TIMEOUT_S)
            request = GenerationRequest(id=1, input_ids=(HANG,), max_new_tokens=1)
            client.sendall(encode_frame({"do": "pong"}))
            client.sendall(encode_frame({"do": "submit", "request": request.to_message()}))
            while read_frame(client) is not None:
                pass
        wait_until(lambda: owner.engine.stats().iteration == 1)
        owner.close()
        listener.shutdown(socket.SHUT_RDWR)


def test_idle_engine_generates_a_token_that_is_not_sent() -> None:
    model = Model(stats_period_s=0.0, self_test_period_s=0.0)
    assert model.read()["is"] == "ready"
    requests: list[GenerationRequest] = []
    submit = model.engine.submit

    def record(request: GenerationRequest) -> None:
        requests.append(request)
        submit(request)

    model.engine.submit = record  # type: ignore[method-assign]
    wait_until(lambda: len(requests) > 1)
    assert (requests[0].input_ids, requests[0].max_new_tokens) == ((1,), 1)
    assert [model.read()["updates"] for _ in range(4)] == [[]] * 4
    model.close()


def test_pulse_distinguishes_an_idle_worker_from_an_engine_without_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PULSES_VARIABLE, str(tmp_path))
    file = PulseFile("worker", "m")
    engine = SlowEngine()
    model = Model(stats_period_s=0.0, engine=engine, pulse=PulseWriter(file.path))

    def pulse() -> Pulse:
        (found,) = read_pulses(tmp_path)
        return found

    wait_until(lambda: pulse().state is PulseState.IDLE and pulse().num_beats > 1)
    model.submit(7, COUNT, max_new_tokens=2)
    wait_until(lambda: pulse().state is PulseState.BUSY and pulse().num_in_flight == 1)
    stuck = pulse()
    time.sleep(0.1)
    assert pulse() == stuck
    engine.may_step.set()
    wait_until(lambda: pulse().state is PulseState.IDLE)
    assert pulse().num_updates == 2
    model.close()
    file.close()
