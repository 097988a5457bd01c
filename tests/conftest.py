"""Fixtures of all tests: each test has its own TLLM_HOME, separate from the user's."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.samples.checkpoints import llama_gguf
from trtllm_serve_cli.paths import Home, find_home

# The files that take longest. They run first, so that parallel processes end at the same time.
# Those that wait for other processes alternate with those that need CPU time.
LONGEST = (
    "test_resilience.py", "test_tensorrt_versions.py", "test_examples.py", "test_container.py",
    "test_export.py", "test_hangs.py", "test_gateway_abuse.py", "test_several_models.py",
    "test_sim.py", "test_life.py", "test_slurm.py", "test_main_path.py", "test_embeddings.py",
    "test_soak.py", "test_draft_models.py",
    "test_job_server.py", "test_file_faults.py", "test_pod_probes.py", "test_specification.py",
    "test_transformers.py", "test_gateway_faults.py", "test_interrupt.py", "test_validate.py",
    "test_page.py", "test_hung_servers.py", "test_simulate_option.py", "test_render.py",
    "test_machine_facts.py", "test_message_faults.py", "test_pypi.py", "test_conversation.py",
    "test_failed_starts.py", "test_benchmark.py", "test_restarts.py", "test_mpi_ranks.py",
    "test_stop_and_restart.py", "test_supervisor.py",
)  # fmt: skip

RUNTIME_COPY = "trtllm_serve_cli.repository.model.runtime_copy"

# Runs are repeatable, since examples depend only on the test, and slow machines do not fail them.
settings.register_profile("quick", max_examples=40, derandomize=True, deadline=None)
settings.register_profile("full", settings.get_profile("quick"), max_examples=1000)

# gRPC restarts its threads in a forked process. Tests fork commands, in which these threads would
# abort the programs that a command starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell ignores SIGINT in its background jobs, `nohup` ignores SIGHUP, and child processes inherit
# this. Tests that send these signals would then wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="test many more random examples and injected faults"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Test modules are imported later, and derive their settings from this profile.
    settings.load_profile("full" if config.getoption("full") else "quick")


def pytest_collection() -> None:
    # The collected tests live until the end. Each full garbage collection would visit them.
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def is_full(pytestconfig: pytest.Config) -> bool:
    """Return whether tests use many random cases, for nightly runs."""
    return bool(pytestconfig.getoption("full"))


@pytest.fixture(scope="session")
def home_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return paths of homes that do not exist, since most tests need no folder."""
    parent = tmp_path_factory.mktemp("homes")
    return (parent / str(number) / "tllm-home" for number in itertools.count())


@pytest.fixture(autouse=True)
def home_folder(home_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    root = next(home_folders)
    for name in ("ENGINE_DEST_PATH", "HF_TOKEN", "HF_ENDPOINT", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TLLM_HOME", str(root))
    return root


@pytest.fixture(autouse=True)
def small_runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Render models with two files of the runtime package, unless a test is marked otherwise.

    The whole package has over 140 files for each of six models. Writing and removing them took most
    of the time of tests that render a repository.
    """
    if request.node.get_closest_marker("whole_runtime") is None:
        sources = {"__init__.py": "", "engine.py": ""}
        monkeypatch.setattr(f"{RUNTIME_COPY}._read_package", lambda: dict(sources))


@pytest.fixture
def home(home_folder: Path) -> Home:
    return find_home()


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    """Return the source of a small GGUF file."""
    (tmp_path / "mine.gguf").write_bytes(llama_gguf())
    return f"gguf:{tmp_path / 'mine.gguf'}"
