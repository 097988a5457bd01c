"""The life cycle of a server: loading and unloading models, draining, restarting."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.alive import processes_of
from tests.e2e.conftest import TLLM, Tllm
from tests.samples.certificates import certify
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import RequestFailed

PARTS = (
    "demo", "ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls",
)  # fmt: skip
LONG = GenerateRequest("Write a story", max_tokens=600, min_tokens=600)


def states(tllm: Tllm) -> dict[str, str]:
    return {each["name"]: each["state"] for each in tllm.status()["triton_models"]}


@pytest.fixture
def controlled(fresh_home: Callable[[], Tllm], tmp_path: Path) -> Iterator[Tllm]:
    """Start a server with explicit model control, TLS, and a passed-through option of Triton."""
    certificate, key = certify(tmp_path, "llm.example")
    tllm = fresh_home()
    started = tllm.start(
        "--model-control-mode=explicit", f"--grpc-server-cert={certificate}",
        f"--grpc-server-key={key}", "--", "--http-thread-count=3",
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    yield tllm
    tllm("stop", "--all", "--timeout", "0")


def assert_other_users_have_no_access(tllm: Tllm) -> None:
    """Assert that other users can read neither the restricted APIs' token nor the prompts."""
    (file,) = (tllm.home / "servers").glob("*/restricted-api-token")
    token = file.read_text().strip()
    assert token and all(token not in " ".join(each.cmdline()) for each in processes_of(tllm))
    regions = list(Path("/dev/shm").glob(f"tllm-{file.parent.name}-*"))
    assert regions and all(region.stat().st_mode & 0o077 == 0 for region in regions)


def test_models_are_loaded_and_unloaded(controlled: Tllm) -> None:
    assert states(controlled) == dict.fromkeys(PARTS, "READY")
    (server,) = json.loads(controlled.done("status", "--startup", "--json"))["servers"]
    stages = [each["name"] for each in server["starts"][0]["stages"]]
    worker = ("start program", "import packages", "load engine")
    assert {*(f"load {part}" for part in PARTS), *(f"tensorrt_llm: {each}" for each in worker)} < {
        *stages
    }
    assert (stages[0], stages[-1]) == ("launch Triton", "first token")
    lines = controlled.done("status").splitlines()
    assert ["tensorrt_llm", "1", "ready"] in [line.split()[:3] for line in lines]
    assert max(map(len, lines[:13])) <= 80
    assert controlled.done("infer", "hi", "--max-tokens=2")  # over TLS
    assert_other_users_have_no_access(controlled)
    controlled.done("unload", "demo")
    assert states(controlled) == dict.fromkeys(PARTS, "UNAVAILABLE")
    assert controlled("infer", "hi").returncode == 3
    loaded = controlled("load", "demo")
    assert [line.split()[1] for line in loaded.stderr.splitlines()[:3]] == [
        "tensorrt_llm", "preprocessing", "postprocessing",
    ]  # fmt: skip
    assert (controlled.status()["restarts"], states(controlled)["demo"]) == (0, "READY")
    assert controlled.done("infer", "hi", "--max-tokens=2")
    # The log can be filtered by model.
    output = controlled.done("logs", "--source", "tensorrt_llm", "-n", "1000").splitlines()
    assert any("successfully unloaded 'tensorrt_llm'" in line for line in output)
    assert not any("'preprocessing'" in line for line in output)


def test_unload_requires_explicit_model_control(served: Tllm) -> None:
    result = served("unload", "demo")
    assert result.returncode == 3
    assert "The server cannot load or unload " in result.stderr
    assert "--model-control-mode explicit" in result.stderr


def test_unknown_triton_option_is_reported(light_home: Callable[[], Tllm]) -> None:
    result = light_home().start("--", "--no-such-thing=1")
    assert result.returncode == 3
    assert "Why: unrecognized option '--no-such-thing=1'\n" in result.stderr


@pytest.mark.parametrize("interface", ["grpc", "http"])
def test_stop_drains_requests_and_rejects_new_ones(
    light_home: Callable[[], Tllm], interface: str
) -> None:
    tllm = light_home()
    assert tllm.start().returncode == 0
    endpoint = tllm.endpoint()
    pieces = stream(endpoint, "demo", LONG, interface)
    next(pieces)
    command = (TLLM, "stop", "--timeout", "120")
    with subprocess.Popen(command, env=tllm.environ, stderr=subprocess.PIPE, text=True) as stopping:
        # The state has requests in flight once the models reject new requests.
        wait_until(lambda: tllm.state().in_flight)
        with pytest.raises(RequestFailed, match="does not accept new requests") as raised:
            generate(endpoint, "demo", GenerateRequest("hi", max_tokens=1), interface)
        assert raised.value.why
        rest = list(pieces)
        _, output = stopping.communicate(timeout=180)
    assert sum(piece.num_output_tokens or 0 for piece in rest) > 500
    assert "waiting for requests in flight: 1 in tensorrt_llm" in output
    assert (stopping.returncode, output.splitlines()[-1]) == (0, "Stopped.")


def test_stop_with_timeout_zero_reports_cancelled_requests(light_home: Callable[[], Tllm]) -> None:
    tllm = light_home()
    assert tllm.start().returncode == 0
    pieces = stream(
        tllm.endpoint(), "demo", GenerateRequest("Go", max_tokens=4000, min_tokens=4000)
    )
    next(pieces)
    output = tllm("stop", "--timeout", "0").stderr
    assert "requests were cancelled: 1 in tensorrt_llm" in output
    with pytest.raises(RequestFailed):
        list(pieces)


def test_restart_applies_settings_and_keeps_launch_options(light_home: Callable[[], Tllm]) -> None:
    tllm = light_home()
    assert tllm.start("--", "--http-thread-count=3").returncode == 0
    before = tllm.status()
    assert "Next: tllm restart -m demo" in tllm("set", "demo", "num_threads=1").stderr
    restarted = tllm("restart")
    assert restarted.returncode == 0, restarted.stderr
    after = tllm.status()
    assert (after["http"], after["state"]) == (before["http"], "ready")
    assert after["supervisor_pid"] != before["supervisor_pid"]
    (plan,) = (tllm.home / "servers").glob("*/plan.json")
    assert json.loads(plan.read_text())["argv"][-1] == "--http-thread-count=3"
