"""Facts about the machine that runs the tests."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.fakes.container_engines import write_engine
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.launch.doctor.machine_facts import ModelFacts, collect_facts
from trtllm_serve_cli.launch.triton.triton_install import find_embedded_root
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home that does not exist yet, on a machine without programs that take long."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return Home(tmp_path / "a" / "b", tmp_path / "engines")


def write_triton(folder: Path, script: str) -> dict[str, str]:
    """Install the script as the machine's Triton; return the environment that finds it.

    The folder also gets a fake podman, unless it has one: the real `podman info` takes 0.3 s.
    """
    if not (folder / "podman").exists():
        write_engine(folder, "podman")
    (folder / "tritonserver").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "tritonserver").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HF_ENDPOINT": "http://127.0.0.1:9"}


def test_facts_of_this_machine(tmp_path: Path) -> None:
    home = Home(tmp_path / "a" / "b", tmp_path / "engines")
    facts = collect_facts(home, {"PATH": "/usr/bin:/bin", "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert (facts.python, facts.home) == (sys.version_info[:2], home.root)
    assert min(facts.disk_free, facts.memory_available) > 0
    assert facts.hub_error == "[Errno 111] Connection refused"
    assert facts.home_error is None
    assert not home.root.exists()


@pytest.mark.parametrize(
    ("root", "error"),
    [
        ("/etc/passwd", "/etc/passwd: it is not a folder"),
        ("/etc/passwd/home", "/etc/passwd: it is not a folder"),
        ("/proc/home", "/proc: the file system does not allow new folders"),
    ],
)
def test_home_that_cannot_be_written(root: str, error: str, home: Home) -> None:
    environ = {"PATH": "", "HF_ENDPOINT": "http://x.invalid"}
    facts = collect_facts(Home(Path(root), home.engines), environ)
    assert facts.home_error == error


@pytest.mark.skipif(find_embedded_root() is None, reason="needs the extra: embedded")
def test_embedded_triton_reports_its_version(home: Home) -> None:
    facts = collect_facts(home, {"PATH": "/none", "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert facts.triton_version is not None
    assert facts.triton_version.startswith("2.")
    assert (facts.has_stub, facts.stub_python) == (True, str(Path(sys.prefix) / "bin" / "python3"))


def test_output_of_a_triton_that_does_not_start_is_kept(home: Home, tmp_path: Path) -> None:
    facts = collect_facts(home, write_triton(tmp_path, "echo no libb64; exit 127"))
    assert (facts.triton_version, facts.triton_output) == (None, "no libb64")


def test_triton_on_path_reports_its_version(home: Home, tmp_path: Path) -> None:
    script = "echo '| server_version   | 9.9.0 |'; exec sleep 600"
    facts = collect_facts(home, write_triton(tmp_path, script))
    assert (facts.triton_version, facts.triton.origin) == ("9.9.0", "PATH")


def test_container_engines_are_probed(home: Home, tmp_path: Path) -> None:
    write_engine(tmp_path, "docker", info="echo no daemon >&2; exit 1")
    write_engine(tmp_path, "podman")
    found = collect_facts(home, write_triton(tmp_path, "exit 1")).containers
    assert (found["docker"], found["podman"].version) == ("no daemon", "5.2.0")


def test_used_port_has_a_holder(home: Home, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        facts = collect_facts(home, write_triton(tmp_path, "exit 1"), ports=(port,))
    assert "(pid " in (facts.ports[port] or "")


@pytest.mark.parametrize("endpoint", ["http://host:port", "nonsense", "ftp://", "http://[::1"])
def test_invalid_hub_address(home: Home, tmp_path: Path, endpoint: str) -> None:
    environ = write_triton(tmp_path, "exit 1") | {"HF_ENDPOINT": endpoint}
    assert collect_facts(home, environ).hub_error


def test_driver_version_comes_from_nvidia_smi(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 570.86.10\nNVIDIA H200, 570.86.10'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = collect_facts(home, write_triton(tmp_path, "exit 1"))
    assert facts.gpu == "NVIDIA H200, 570.86.10; NVIDIA H200, 570.86.10"
    assert facts.driver == "570.86.10"


def test_imported_models_are_checked_against_this_machine(home: Home, tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path)
    write_repository(plan_repository("big", engine, ServingOptions()), home.models / "big")
    environ = write_triton(tmp_path, "exit 1")
    assert collect_facts(home, environ).models == (ModelFacts("big", cuda=13),)
    (engine.path / "rank1.engine").unlink()
    (big,) = collect_facts(home, environ).models
    assert big.misfit is not None
    assert big.misfit.why == "the engine has 2 ranks, but the folder does not contain rank1.engine"


def test_broken_manifest_is_reported_for_its_model_only(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLLM_HOME", str(home.root))
    for name in ("good", "cut"):
        engine = tensorrt_engine(tmp_path)
        write_repository(plan_repository(name, engine, ServingOptions()), home.models / name)
    (home.models / "cut" / "tllm.json").write_text("{")
    good, cut = collect_facts(home, write_triton(tmp_path, "exit 1")).models
    assert (good.name, good.misfit, cut.name) == ("good", None, "cut")
    assert cut.misfit is not None
    assert "tllm remove cut" in cut.misfit.next_step
