"""Run rounds of load on a server, kill its processes, and check it after each round."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import psutil
from soak_accounts import ClientCounts, ServerCounts, compare, read_gateway, read_triton
from soak_cases import TRITON, WORDS, Answer, Case, find_problem
from soak_client import Addresses, Load
from soak_engines import Engine
from soak_growth import find_part

from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.gateway.health import find_gateway_problem
from trtllm_serve_cli.launch.server_state import ServerState, read_state
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics

Fault = Literal["", "engine worker", "gateway", "stub of tensorrt_llm"]
# The counts of Triton and of the gateway.
Counted = tuple[ServerCounts, ServerCounts]
# The process to kill in each of four rounds. The supervisor never gives up, because the server
# becomes ready after each restart.
FAULTS: tuple[Fault, ...] = ("", "engine worker", "gateway", "stub of tensorrt_llm")
# Fraction of the rounds that repeat `FAULTS`. In the remaining rounds, all processes keep running,
# so that slow growth becomes visible.
_FAULTY_SHARE = 2 / 3
_LIMIT_S = 180.0
# The models publish their counters twice per second.
_SETTLE_S = 1.2
_POLL_S = 0.1
# Maximum length of the description of a problem.
_MAX_CHARACTERS = 400


def plan_faults(num_rounds: int) -> list[Fault]:
    """Return the process to kill in each round, or "" for a round without a fault."""
    num_faulty = round(num_rounds * _FAULTY_SHARE)
    return [FAULTS[n % len(FAULTS)] if n < num_faulty else "" for n in range(num_rounds)]


@dataclass
class Round:
    """The counts of one round. `recovery_s` is the time until the server was ready again."""

    fault: Fault
    begin_s: float
    end_s: float = 0.0
    killed_s: float = 0.0
    recovery_s: float = 0.0
    triton: ClientCounts = field(default_factory=ClientCounts)
    gateway: ClientCounts = field(default_factory=ClientCounts)
    triton_counted: ServerCounts | None = None
    gateway_counted: ServerCounts | None = None


@dataclass
class Soak:
    """The soak test of one running server: its load, its rounds, and the problems found."""

    server: RunningServer
    engine: Engine
    started_s: float = field(default_factory=time.monotonic)
    rounds: list[Round] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def now_s(self) -> float:
        return time.monotonic() - self.started_s

    def run(self, seconds: float, round_s: float, progress: Callable[[str], None]) -> None:
        """Run the load in rounds, until `seconds` have passed."""
        assert self.server.plan.gateway is not None
        endpoint, model = self.server.endpoint, self.engine.profile.model
        addresses = Addresses(
            endpoint,
            fetch_model_config(endpoint, model, "grpc"),
            self.server.plan.gateway.port,
            self._fetch_word_tokens(),
        )
        load = Load(
            self.engine.profile, addresses, self.engine.rate_per_s, self.engine.num_clients,
            self._record,
        )  # fmt: skip
        with load.running():
            counts = self._settle()
            for fault in plan_faults(max(1, round(seconds / round_s))):
                counts = self._run_round(load, fault, round_s, counts)
                progress(describe(self.rounds[-1], len(self.rounds)))
                if self._state().phase == "failed":
                    self._report(["the server has failed"], "supervisor")
                    return

    def _run_round(self, load: Load, fault: Fault, round_s: float, before: Counted) -> Counted:
        """Run one round, check it, and return the server's counts at its end."""
        current = Round(fault, self.now_s())
        self.rounds.append(current)
        load.resume()
        if fault:
            time.sleep(round_s / 3)
            current.killed_s = self.now_s()
            with load.disturbed():
                current.recovery_s = self._kill(fault)
        time.sleep(max(0.0, current.begin_s + round_s - self.now_s()))
        load.pause()
        after = self._settle()
        # The counters of a process that was killed are lost.
        if not fault.startswith("stub"):
            current.triton_counted = after[0] - before[0]
            self._report(compare(current.triton, current.triton_counted), "Triton")
        if fault != "gateway":
            current.gateway_counted = after[1] - before[1]
            self._report(compare(current.gateway, current.gateway_counted), "gateway")
        self._check_state()
        self._report(load.crashes[-1:], "client")
        current.end_s = self.now_s()
        return after

    def _record(self, case: Case, answer: Answer, is_disturbed: bool) -> None:
        """Count and check an answer. One thread at a time calls this method."""
        current = self.rounds[-1]
        counts = current.triton if case.interface in TRITON else current.gateway
        counts.add(case, answer)
        problem = find_problem(case, answer, self.engine.profile)
        if answer.outcome == "failed" and not is_disturbed:
            problem = f"the request failed although no process was down: {answer.error}"
        if problem:
            self._report([f"{problem} [{case}]"], f"{case.kind} over {case.interface}")
        self.requests.append(
            {"at_s": round(answer.sent_s - self.started_s, 3),
             "duration_s": round(answer.ended_s - answer.sent_s, 3),
             "interface": case.interface, "kind": case.kind, "stream": case.is_stream,
             "outcome": answer.outcome, "tokens": answer.num_tokens or answer.num_pieces,
             "disturbed": is_disturbed, "error": answer.error}
        )  # fmt: skip

    def _report(self, problems: list[str], where: str) -> None:
        number = len(self.rounds)
        self.problems += [f"round {number}, {where}: {each}"[:_MAX_CHARACTERS] for each in problems]

    def _kill(self, part: Fault) -> float:
        """Kill a process with SIGKILL, and return the seconds until the server has recovered."""
        victim = find_part(self.server, part)
        if victim is None:
            self._report([f"the process {part} was not found"], "fault")
            return 0.0
        killed_s = time.monotonic()
        victim.send_signal(signal.SIGKILL)
        if not wait_until(lambda: self._has_recovered(part, victim)):
            self._report([f"the server did not recover within {_LIMIT_S:g} s"], part)
        recovery_s = time.monotonic() - killed_s
        # The gateway reconnects to the worker within a fraction of a second.
        time.sleep(_SETTLE_S)
        return recovery_s

    def _has_recovered(self, part: str, victim: psutil.Process) -> bool:
        assert self.server.plan.gateway is not None
        try:
            successor = find_part(self.server, part)
            return (
                successor is not None
                and successor.pid != victim.pid
                and self._state().phase == "ready"
                and self._triton_page().value("tllm_engine_worker_up") == 1
                and not find_gateway_problem(self.server.plan.gateway)
            )
        except (TllmError, psutil.Error):
            return False

    def _settle(self) -> Counted:
        """Wait until the server is idle and its counters do not change, and return them."""
        seen = [(ServerCounts(), ServerCounts())]

        def is_settled() -> bool:
            with contextlib.suppress(TllmError):
                seen.append(self._read_counts())
                if len(seen) > 2 and seen[-1] == seen[-2] and self.count_active() == 0:
                    return True
            time.sleep(_SETTLE_S)
            return False

        if not wait_until(is_settled):
            self._report([f"slots are still in use {_LIMIT_S:g} s after the load"], "slots")
        return seen[-1]

    def _read_counts(self) -> Counted:
        model = self.engine.profile.model
        return read_triton(self._triton_page(), model), read_gateway(self._gateway_page())

    def count_active(self) -> float:
        """Return the number of requests in the engine and in the gateway."""
        in_engine = self._triton_page().value("nv_trt_llm_request_metrics", request_type="active")
        in_gateway = self._gateway_page().value("tllm_gateway_requests_in_flight")
        return max(in_engine or 0.0, in_gateway or 0.0)

    def _check_state(self) -> None:
        """Check that only the expected restarts have happened."""
        state, faults = self._state(), [each.fault for each in self.rounds]
        found = {
            "restarts of the server": (state.restarts, faults.count("stub of tensorrt_llm")),
            "restarts of the gateway": (state.gateway_restarts, faults.count("gateway")),
            "hangs": (state.hangs, 0),
        }
        problems = [f"{what}: {n} instead of {m}" for what, (n, m) in found.items() if n != m]
        self._report(problems, "supervisor")

    def _state(self) -> ServerState:
        state = read_state(self.server.directory)
        assert state is not None
        return state

    def _triton_page(self) -> Snapshot:
        return parse_metrics(fetch_metrics(self.server.endpoint.metrics), 0.0)

    def _gateway_page(self) -> Snapshot:
        assert self.server.plan.gateway is not None
        address = self.server.plan.gateway.url.partition("://")[2]
        return parse_metrics(fetch_metrics(address), 0.0)

    def _fetch_word_tokens(self) -> dict[str, int]:
        """Return the token of each word. Raise `ValueError` if a word has several tokens."""
        assert self.server.plan.gateway is not None
        tokens = {}
        for word in WORDS:
            body = json.dumps({"model": self.engine.profile.model, "prompt": f" {word}"}).encode()
            url = f"{self.server.plan.gateway.url}/tokenize"
            headers = {"Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
                (tokens[word],) = json.load(response)["tokens"]
        return tokens


def wait_until(condition: Callable[[], bool], limit_s: float = _LIMIT_S) -> bool:
    """Wait for a condition, and return whether it was met in time."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def describe(current: Round, number: int) -> str:
    """Return a line about a round that has ended."""
    total = current.triton.total + current.gateway.total
    failed = current.triton.failed + current.gateway.failed
    killed = f", killed: {current.fault} ({current.recovery_s:.1f} s)" if current.fault else ""
    return f"round {number}: {total} requests, {failed} failed{killed}"


def count_all(rounds: list[Round]) -> Iterator[tuple[str, ClientCounts]]:
    """Yield the clients' counts, summed over all rounds, for Triton and for the gateway."""
    for door in ("triton", "gateway"):
        total = ClientCounts()
        for each in rounds:
            for name, value in asdict(getattr(each, door)).items():
                setattr(total, name, getattr(total, name) + value)
        yield door, total
