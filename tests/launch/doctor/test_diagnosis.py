"""Diagnoses of a machine, with one wrong fact at a time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from trtllm_serve_cli.containers.container import ContainerHost
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.doctor.diagnosis import Finding, diagnose
from trtllm_serve_cli.launch.doctor.machine_facts import MachineFacts, ModelFacts
from trtllm_serve_cli.launch.doctor.schedulers import Scheduler
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation

GIB = 1 << 30
MACHINE = Machine(("H200",), {"openvino-genai": "2026.4.1"}, {"vllm": "/vllm/bin/python3"})
GOOD = MachineFacts(
    python=(3, 11),
    triton=TritonInstallation(Path("/t/tritonserver"), "the wheel", Path("/t/python")),
    triton_version="2.51.0",
    triton_output="",
    has_stub=True,
    libpython_dir="/py/lib",
    stub_python="/venv/bin/python3",
    numpy_version="1.26.4",
    machine=MACHINE,
    gateway_versions={"starlette": "1.10.0", "uvicorn": "0.54.0"},
    ports={8000: None},
    home=Path("/home/tllm"),
    home_error=None,
    disk_free=50 * GIB,
    memory_available=20 * GIB,
    shared_memory_free=GIB,
    open_file_limit=1 << 20,
    gpu="H200, 580.126.09",
    driver="580.126.09",
    models=(ModelFacts("llama", cuda=12), ModelFacts("demo")),
    mpi=Scheduler("Open MPI 4.1.4"),
    slurm=Scheduler("24.05.1"),
    kubernetes=Scheduler("1.31.0"),
    containers={
        "docker": ContainerHost("docker", "27.1.1", has_gpu_toolkit=True),
        "podman": "not installed",
    },
    hub="https://hub",
    hub_error=None,
    has_hub_token=True,
)
NEWER_DRIVER = "CUDA 13 requires driver 580.65.06 or later"
EMBEDDED = "pip install 'trtllm-serve-cli[embedded]'"
PIN_NUMPY = "/venv/bin/python3 -m pip install 'numpy<2'"
REMOUNT = "mount -o remount,size=1G /dev/shm   (in a container: --shm-size=1g)"


def test_findings_of_a_good_machine() -> None:
    assert diagnose(GOOD) == [
        Finding("Triton", "ok", "2.51.0, from the wheel"),
        Finding("Python stub", "ok", "for Python 3.11"),
        Finding("libpython", "ok", "/py/lib"),
        Finding("NumPy", "ok", "1.26.4 for /venv/bin/python3"),
        Finding("engine openvino", "ok", "openvino-genai 2026.4.1"),
        Finding("engine vllm", "ok", "in /vllm/bin/python3"),
        Finding("gateway", "ok", "starlette 1.10.0, uvicorn 0.54.0"),
        Finding("port 8000", "ok", "free"),
        Finding("disk", "ok", "50.0 GiB for /home/tllm"),
        Finding("memory", "ok", "20.0 GiB available"),
        Finding("shared memory", "ok", "1024 MiB free in /dev/shm"),
        Finding("open files", "ok", "at most 1048576"),
        Finding("GPU", "ok", "H200, 580.126.09"),
        Finding("NVIDIA driver", "ok", "580.126.09, supports CUDA up to 13"),
        Finding("models", "ok", "2 imported; no problems with their engines"),
        Finding("docker", "ok", "27.1.1"),
        Finding("model hub", "ok", "https://hub"),
        Finding("hub token", "ok", "found"),
        Finding("MPI", "ok", "Open MPI 4.1.4"),
        Finding("Slurm", "ok", "24.05.1"),
        Finding("Kubernetes", "ok", "1.31.0"),
    ]


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        (
            {"triton": None},
            Finding("Triton", "problem",
                    "tritonserver not found on PATH or in /opt/tritonserver, and nvidia-pytriton "
                    "not installed for Python 3.11",
                    EMBEDDED),
        ),
        (
            {"triton_version": None, "triton_output": "no libb64"},
            Finding("Triton", "problem", "/t/tritonserver does not start: no libb64",
                    "pip install --force-reinstall nvidia-pytriton"),
        ),
        (
            {
                "triton": TritonInstallation(Path("/usr/bin/tritonserver"), "PATH"),
                "triton_version": None,
                "triton_output": "no libb64",
            },
            Finding("Triton", "problem", "/usr/bin/tritonserver does not start: no libb64",
                    f"reinstall this Triton, or remove it and run {EMBEDDED}"),
        ),
        (
            {"has_stub": False, "python": (3, 14)},
            Finding("Python stub", "problem", "this Triton has no stub for Python 3.14",
                    "install tllm under Python 3.10, 3.11 or 3.12"),
        ),
        (
            {"libpython_dir": None},
            Finding("libpython", "problem",
                    "libpython3.11.so.1.0 not found; Triton's Python stub is linked against it",
                    "apt-get install libpython3.11   (or a Python built with --enable-shared)"),
        ),
        (
            {"stub_python": None},
            Finding("NumPy", "problem", "no python3 found for Triton's stub",
                    "install tllm in a virtual environment"),
        ),
        (
            {"numpy_version": None},
            Finding("NumPy", "problem", "not installed for /venv/bin/python3", PIN_NUMPY),
        ),
        (
            {"numpy_version": "2.3.1"},
            Finding("NumPy", "problem",
                    "2.3.1 for /venv/bin/python3: Triton's stub corrupts strings with NumPy 2 or "
                    "later", PIN_NUMPY),
        ),
        (
            {"machine": Machine()},
            Finding("engine openvino", "problem", "openvino-genai is missing", EMBEDDED),
        ),
        (
            {"ports": {8000: "nginx (pid 7)"}},
            Finding("port 8000", "note", "in use by nginx (pid 7)",
                    "tllm stop, or tllm start with other ports"),
        ),
        (
            {"disk_free": GIB // 2},
            Finding("disk", "problem", "0.5 GiB for /home/tllm; at least 1 GiB required",
                    "free disk space, or set TLLM_HOME to a folder on another disk"),
        ),
        (
            {"memory_available": GIB},
            Finding("memory", "problem", "1.0 GiB available; at least 2 GiB required",
                    "close other programs, or serve a smaller model"),
        ),
        (
            {"shared_memory_free": 1 << 20},
            Finding("shared memory", "problem", "1 MiB free in /dev/shm", REMOUNT),
        ),
        (
            {"shared_memory_free": None},
            Finding("shared memory", "problem", "no /dev/shm", REMOUNT),
        ),
        (
            {"open_file_limit": 4096},
            Finding("open files", "note",
                    "at most 4096; the gateway requires 8448 for its maximum number of requests",
                    "raise the hard limit, for example with LimitNOFILE= (systemd) or --ulimit "
                    "nofile= (docker)"),
        ),
        ({"open_file_limit": -1}, Finding("open files", "ok", "no limit")),
        (
            {"gpu": None},
            Finding("GPU", "note", "not found; engine kind openvino does not need a GPU"),
        ),
        (
            {"driver": None},
            Finding("NVIDIA driver", "note", "not found; required only for NVIDIA GPUs"),
        ),
        (
            {"driver": "535.104.05"},
            Finding("NVIDIA driver", "note",
                    "535.104.05, supports CUDA up to 12 (NVIDIA's containers up to 25.10)",
                    NEWER_DRIVER),
        ),
        (
            {"driver": "418.87"},
            Finding("NVIDIA driver", "note", "418.87, does not support CUDA 11 or later",
                    NEWER_DRIVER),
        ),
        (
            {"driver": "[N/A]"},
            Finding("NVIDIA driver", "note", "[N/A]; supported CUDA versions unknown"),
        ),
        (
            {"models": ()},
            Finding("models", "note", "none imported yet", "tllm import -m demo"),
        ),
        (
            {"models": (ModelFacts("llama", BadInput("It is for another GPU.", why="an L4",
                                                     next_step="build it again")),)},
            Finding("engine of llama", "note", "It is for another GPU. an L4", "build it again"),
        ),
        (
            {"mpi": None},
            Finding("MPI", "note",
                    "mpirun not found; required only for engines with several ranks"),
        ),
        (
            {"mpi": Scheduler("MPICH 4.1", "not Open MPI")},
            Finding("MPI", "note", "MPICH 4.1: not Open MPI",
                    "apt-get install openmpi-bin"),
        ),
        (
            {"slurm": None},
            Finding("Slurm", "note",
                    "sinfo not found; required only for tllm deploy slurm --submit"),
        ),
        (
            {"slurm": Scheduler("24.05.1", "Unable to contact slurm controller")},
            Finding("Slurm", "note", "24.05.1: Unable to contact slurm controller", "sinfo"),
        ),
        (
            {"kubernetes": None},
            Finding("Kubernetes", "note", "kubectl not found; required only for tllm deploy k8s"),
        ),
        (
            {"containers": {"docker": "not installed", "podman": "not installed"}},
            Finding("containers", "note",
                    "docker and podman not found; required only for --mode container",
                    "run `apt-get install podman`"),
        ),
        (
            {"containers": {"docker": "Cannot connect to the Docker daemon at unix:///d.sock."}},
            Finding("docker", "note",
                    "cannot run containers: Cannot connect to the Docker daemon at unix:///d.sock.",
                    "run `sudo systemctl start docker`"),
        ),
        (
            {"containers": {"podman": ContainerHost("podman", "5.2.0")}},
            Finding("podman", "note",
                    "5.2.0; /etc/cdi and /var/run/cdi contain no CDI specification for NVIDIA "
                    "GPUs",
                    "install the NVIDIA Container Toolkit "
                    "(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit), then "
                    "run `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"),
        ),
        (
            {"hub_error": "timed out"},
            Finding("model hub", "note",
                    "https://hub cannot be reached (timed out); the sources gguf:, local: and "
                    "pypi: still work",
                    "set HF_ENDPOINT=https://… to use a mirror"),
        ),
        (
            {"has_hub_token": False},
            Finding("hub token", "note", "not found; required only for gated models",
                    "hf auth login   (or HF_TOKEN=…)"),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_each_problem_is_found(broken: dict[str, Any], finding: Finding) -> None:
    changed = [each for each in diagnose(dataclasses.replace(GOOD, **broken))
               if each not in diagnose(GOOD)]  # fmt: skip
    assert changed[0] == finding


def test_driver_too_old_for_a_container_is_reported_for_that_model() -> None:
    facts = dataclasses.replace(
        GOOD, driver="570.10", models=(ModelFacts("new", cuda=13), ModelFacts("old", cuda=12))
    )
    found = [each for each in diagnose(facts) if each.what.startswith("engine of ")]
    assert found == [
        Finding("engine of new", "note",
                "the engine's container has CUDA 13, which driver 570.10 does not support",
                NEWER_DRIVER)
    ]  # fmt: skip


def test_optional_parts_are_not_problems() -> None:
    bare = dataclasses.replace(
        GOOD, gpu=None, driver=None, models=(), mpi=None, slurm=None, kubernetes=None
    )
    assert "problem" not in {each.verdict for each in diagnose(bare)}


def test_missing_gpu_toolkit_is_ok_without_a_gpu() -> None:
    podman = ContainerHost("podman", "5.2.0")
    facts = dataclasses.replace(GOOD, gpu=None, containers={"podman": podman})
    assert Finding("podman", "ok", "5.2.0") in diagnose(facts)


def test_system_libpython_is_ok() -> None:
    facts = dataclasses.replace(GOOD, libpython_dir="")
    assert Finding("libpython", "ok", "the system's libpython3.11") in diagnose(facts)


def test_only_the_embedded_triton_requires_libpython() -> None:
    system = TritonInstallation(Path("/opt/tritonserver/bin/tritonserver"), "PATH")
    facts = dataclasses.replace(GOOD, triton=system, libpython_dir=None)
    expected = Finding(
        "libpython", "note", "libpython3.11.so.1.0 not found; required only for the embedded Triton"
    )
    assert expected in diagnose(facts)


@pytest.mark.parametrize("broken", [{"triton": None}, {"libpython_dir": None}])
def test_every_problem_has_a_fix(broken: dict[str, Any]) -> None:
    findings = diagnose(dataclasses.replace(GOOD, **broken))
    assert all(each.fix for each in findings if each.verdict == "problem")


def test_numpy_is_not_checked_without_triton() -> None:
    """The embedded Triton uses the NumPy of its environment, not the one on PATH."""
    found = diagnose(dataclasses.replace(GOOD, triton=None, numpy_version="2.3.1"))
    assert Finding("NumPy", "note", "the embedded Triton installs a compatible version") in found


def test_vllm_is_checked_only_with_a_gpu() -> None:
    def found(**changes: object) -> dict[str, Finding]:
        return {each.what: each for each in diagnose(dataclasses.replace(GOOD, **changes))}

    without_vllm = dataclasses.replace(MACHINE, pythons={})
    assert "engine vllm" not in found(machine=dataclasses.replace(without_vllm, gpus=()))
    assert found(machine=without_vllm)["engine vllm"].verdict == "note"
    without_openvino = dataclasses.replace(MACHINE, versions={})
    assert found(machine=without_openvino)["engine openvino"].verdict == "note"


def test_home_that_triton_cannot_use_is_a_problem() -> None:
    found = {
        each.what: each.verdict
        for each in diagnose(dataclasses.replace(GOOD, home=Path("/home/josé")))
    }
    assert found["TLLM_HOME"] == "problem"


def test_home_that_cannot_be_written_is_a_problem() -> None:
    facts = dataclasses.replace(GOOD, home_error="/home: Read-only file system")
    assert next(each for each in diagnose(facts) if each.what == "TLLM_HOME") == Finding(
        "TLLM_HOME",
        "problem",
        "/home/tllm cannot be written (/home: Read-only file system)",
        "set TLLM_HOME to a writable folder",
    )
