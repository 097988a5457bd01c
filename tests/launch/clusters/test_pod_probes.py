"""The probes of a pod, whose programs run against real processes that write heartbeats."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.heartbeats import counting, make_runtime_folder
from tests.fakes.triton.server import FakeTriton
from tests.launch.clusters.kubernetes_samples import OLD, PLAIN, WITH_WORKER, container, plan
from trtllm_serve_cli.launch.clusters.pod_script import PULSES_FOLDER
from trtllm_serve_cli.launch.containers.deployment import Deployable

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def probes(model: Deployable, **options: Any) -> dict[str, Any]:
    server = container(plan(model, **options)["Deployment"])
    return {name: server[name] for name in PROBES}


def find_timing(probe: dict[str, Any]) -> tuple[int, int, int]:
    return probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]


def test_model_of_an_earlier_version_is_probed_with_tritons_health_endpoints() -> None:
    made = probes(OLD, timeout_s=95)
    assert {name: (each["httpGet"]["path"], *find_timing(each)) for name, each in made.items()} == {
        "startupProbe": ("/v2/health/ready", 10, 5, 10),
        "readinessProbe": ("/v2/health/ready", 5, 5, 3),
        "livenessProbe": ("/v2/health/live", 10, 5, 3),
    }


def test_probes_wait_longer_than_the_time_limits() -> None:
    """An engine that has died may take `--timeout` to load again."""
    made = probes(WITH_WORKER, timeout_s=1800, hang_timeout_s=300)
    assert "httpGet" in made["startupProbe"]
    assert find_timing(made["startupProbe"]) == (10, 5, 180)
    assert find_timing(made["readinessProbe"]) == (5, 40, 1)
    assert find_timing(made["livenessProbe"]) == (10, 1830, 1)
    assert made["livenessProbe"]["terminationGracePeriodSeconds"] == 5


def test_tokens_of_an_engine_without_heartbeats_are_requested_every_30_s() -> None:
    made = probes(PLAIN)
    for name in ("readinessProbe", "livenessProbe"):
        assert made[name]["periodSeconds"] == 30
        assert made[name]["exec"]["command"][-3:] == [
            "--token", "Llama_3.1", '{"text_input": "Hello", "max_tokens": 1}',
        ]  # fmt: skip


def test_hangs_are_only_reported_without_a_time_limit() -> None:
    made = probes(WITH_WORKER, hang_timeout_s=0.0)
    assert made["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert "ready" in made["readinessProbe"]["exec"]["command"]


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """Return a folder with the runtime package and a folder for heartbeats."""
    return make_runtime_folder(tmp_path)


def run_probe(
    name: str, pod: Path, triton: FakeTriton, model: Deployable = WITH_WORKER
) -> tuple[int, str]:
    """Run the probe with time limits of 1 s for an engine and 5 s for other processes.

    Return its exit code and its output.
    """
    here = replace(model, runtime=pod)
    (*command,) = probes(here, hang_timeout_s=1.0, timeout_s=1.0)[name]["exec"]["command"]
    moved = {"8000": triton.endpoint.http, "8002": triton.endpoint.metrics}
    command = [word.replace(PULSES_FOLDER, str(pod / "pulses")) for word in command]
    for port, address in moved.items():
        command = [word.replace(f"127.0.0.1:{port}", address) for word in command]
    # The first `python3` on PATH may be a slow script, for example of pyenv.
    environ = {"PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def run_both(
    pod: Path, triton: FakeTriton, model: Deployable = WITH_WORKER
) -> list[tuple[int, str]]:
    return [run_probe(each, pod, triton, model) for each in ("readinessProbe", "livenessProbe")]


GOOD = [(0, ""), (0, "")]


@pytest.mark.parametrize(
    ("role", "state"), [("worker", "idle"), ("worker", "steps"), ("model", "idle")]
)
def test_processes_that_make_progress_are_ready_and_live(
    pod: Path, triton: FakeTriton, role: str, state: str
) -> None:
    with counting(pod / "pulses", role, state):
        assert run_both(pod, triton) == GOOD


def test_stopped_process_is_neither_ready_nor_live(pod: Path, triton: FakeTriton) -> None:
    with counting(pod / "pulses", "worker", "steps") as process:
        process.send_signal(signal.SIGSTOP)
        why = (
            f"the engine worker of m (process {process.pid}) has not responded for 2.5 s "
            "(stopped by a signal)\n"
        )
        assert run_both(pod, triton) == [(1, why), (1, why)]
        process.send_signal(signal.SIGCONT)
        assert run_both(pod, triton) == GOOD


def test_engine_without_a_step_is_not_live_and_writes_its_stacks(
    pod: Path, triton: FakeTriton
) -> None:
    with counting(pod / "pulses", "worker", "waits") as process:
        why = (
            f"the engine worker of m (process {process.pid}) has not completed a step for 0.5 s, "
            "with 2 requests in flight\n"
        )
        assert run_both(pod, triton) == [(1, why), (1, why)]
        process.kill()
        assert process.stderr is not None
        assert b"most recent call first" in process.stderr.read()


def test_model_that_died_is_neither_ready_nor_live(pod: Path, triton: FakeTriton) -> None:
    with counting(pod / "pulses", "model", "idle") as process:
        pass
    why = f"the process of model m (process {process.pid}) died\n"
    assert run_both(pod, triton) == [(1, why), (1, why)]


def test_triton_that_does_not_respond_is_neither_ready_nor_live(
    pod: Path, triton: FakeTriton
) -> None:
    triton.stop()
    why = f"Triton has not responded on {triton.endpoint.http} for 2.5 s\n"
    assert run_both(pod, triton) == [(1, why), (1, why)]


def test_engine_without_heartbeats_generates_a_token(pod: Path, triton: FakeTriton) -> None:
    assert run_both(pod, triton, PLAIN) == GOOD
    assert [each.model for each in triton.requests] == ["Llama_3.1"] * 2
    triton.hold.clear()
    why = "Llama_3.1 has not generated a token for 0.5 s\n"
    assert run_both(pod, triton, PLAIN) == [(1, why), (1, why)]
