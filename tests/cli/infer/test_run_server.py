"""`tllm run` with a fake Triton."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import filelock
import pytest

from tests.cli.running import Tllm
from tests.ports import free_ports
from tests.samples.launch_plans import fake_plan, write_fake_tritonserver
from tests.samples.repositories import add_model
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.launch.server_state import PLAN_FILE, START_LOCK
from trtllm_serve_cli.launch.servers.running import list_servers
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.repository.model.store import MANIFEST

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def home(home_folder: Path) -> Iterator[Home]:
    home = find_home()
    yield home
    for server in list_servers(home):
        stop_server(server)


@pytest.fixture
def tllm(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tllm:
    program = tmp_path / "bin" / "tritonserver"
    write_fake_tritonserver(program, has_grpc=True)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return Tllm(monkeypatch, capsys)


def add_model_without_gateway(home: Home) -> None:
    manifest = add_model(home, "m").path / MANIFEST
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "declaration": {"launch": {"openai": False}}}))


def port_option() -> tuple[str, str]:
    return "--http-port", str(free_ports(3)[0])


def test_next_step_is_printed_only_without_a_prompt(tllm: Tllm, home: Home) -> None:
    add_model_without_gateway(home)
    code, out, err = tllm("run", "m", "go", *port_option())
    assert (code, bool(out)) == (0, True)
    assert "m is ready after" in err and "Next:" not in err
    assert 'Next: tllm infer "What is ML?"\n' in tllm("run", "m")[2]


def test_run_waits_for_commands_that_import_and_start_the_model(
    tllm: Tllm, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each notice that `tllm run` waits lets the next of the other commands finish."""
    plan = fake_plan(home.servers)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    home.locks.mkdir(parents=True)
    locks = (home.locks / "m.run.lock", home.locks / "m.lock", plan.directory / START_LOCK)
    notices = []
    with ExitStack() as others:
        held = [others.enter_context(filelock.FileLock(path)) for path in locks]

        def notify(text: str) -> None:
            notices.append(text)
            if text.startswith("Waiting for"):
                held.pop(0).release()
                add_model_without_gateway(home)

        monkeypatch.setattr(output, "notify", notify)
        code, out, _ = tllm("run", "m", "go", "-s", "hf:o/m", *port_option())
    assert (code, bool(out)) == (0, True)
    assert notices[:3] == [
        "Waiting for another tllm process that is starting m …",
        "Waiting for another tllm process that is importing or building m …",
        "Waiting for another tllm process that is starting m …",
    ]
