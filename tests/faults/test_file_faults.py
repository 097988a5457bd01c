"""Make each file operation of a command fail, and check the files that the command leaves.

A rehearsal runs the command without a fault, and records its file operations under TLLM_HOME and on
the user's files: opening, reading, listing, creating, writing, renaming, linking, changing
permissions and removing. The command is then repeated with a fault in one operation: a full disk
(ENOSPC), a broken disk (EIO), missing permissions (EACCES), a file that ends early (truncated), or
the death of the process (SIGKILL). A write fails after its first half. After each fault:

- the exit code is 3 with what happened, why and what to do next, or 0 if all work was done
- each engine, model repository, server, downloaded file and key file is as before or as after the
  command
- no temporary file is left, except by a killed process or by a removal that failed
- a download is not used without the hub before it is complete
- the next command succeeds, and leaves the same files as without the fault

By default, a sixth of the package's lines that read or change files fail in each scenario, once and
with faults that take turns. With --full, every operation fails with all faults.
"""

from __future__ import annotations

import hashlib
import shlex
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.command_runs import Machine
from tests.faults.file_operations import (
    READ,
    READING,
    SHARE,
    Operation,
    choose_faults,
    faults_of,
)
from tests.faults.files import CACHE
from tests.faults.hub_server import FILES, REPOSITORY
from tests.faults.rehearsal import Rehearsal, Scenario
from tests.ports import free_ports
from tests.samples.builds import SIM
from tests.samples.checkpoints import llama_gguf
from trtllm_serve_cli.build.engine import write_engine

# A supervisor outlives the process that started it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

INTERPRETER = Path(__file__).with_name("fake_interpreter.py")
FAKE_IMPORT = ("import", "--engine", "sim", "--timing", "timing.json", "-s")
IMPORT = (*FAKE_IMPORT, "gguf:mine.gguf", "-m")
DOWNLOAD = (*FAKE_IMPORT, f"hf:{REPOSITORY}", "-m", "m")
WEIGHTS = FILES["model.safetensors"]
PARTIAL = "{}/models--{}/blobs/{}.incomplete".format(
    CACHE, REPOSITORY.replace("/", "--"), hashlib.sha256(WEIGHTS).hexdigest()
)
SET = ("set", "m", "max_queue_size=5", "max_num_seqs=3")
_HTTP, _GRPC, _METRICS = free_ports(3)
START = (
    "start", "m", "n", "--no-openai",
    f"--http-port={_HTTP}", f"--grpc-port={_GRPC}", f"--metrics-port={_METRICS}",
)  # fmt: skip
# A layout with one model, which is in the runtime of the tests.
ONE_MODEL = (*IMPORT, "m", "--layout", "llmapi")
OLD_RUNTIME = "models/m/tensorrt_llm/1/tllm_runtime/__init__.py"
SCENARIOS = {
    "import": Scenario((*IMPORT, "m")),
    "import again": Scenario((*IMPORT, "m", "--force"), ((*IMPORT, "m"), SET)),
    "set": Scenario(SET, ((*IMPORT, "m"),), reader=("show", "m")),
    "start": Scenario(START, ((*IMPORT, "m"), (*IMPORT, "n"))),
    "start again": Scenario(START, ((*IMPORT, "m"), (*IMPORT, "n"), START)),
    "update": Scenario(
        ("update", "m"), (ONE_MODEL,), (*ONE_MODEL, "--force"), files={OLD_RUNTIME: b"old"}
    ),
    "keys add": Scenario(("keys", "add", "alice"), following=("keys", "add", "bob")),
    "keys add another": Scenario(
        ("keys", "add", "alice"), (("keys", "add", "carol"),), ("keys", "add", "bob")
    ),
    "keys revoke": Scenario(
        ("keys", "revoke", "alice"), (("keys", "add", "alice"),), ("keys", "add", "bob")
    ),
    "keys list": Scenario(("keys", "list"), (("keys", "add", "alice"),)),
    "remove": Scenario(
        ("remove", "n", "--engines", "--yes"), ((*IMPORT, "m"), (*IMPORT, "n")), (*IMPORT, "n")
    ),
    "import from a hub": Scenario(DOWNLOAD, downloads=True),
    "import from a hub, resumed": Scenario(
        DOWNLOAD, files={PARTIAL: WEIGHTS[: len(WEIGHTS) // 2]}, downloads=True
    ),
}


@pytest.fixture
def machine(tmp_path: Path, home_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with a model, a fake Triton, and fake build steps and supervisors."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "mine.gguf").write_bytes(llama_gguf())
    (sources / "timing.json").write_text('{"timing": {"step_s": 0.002}}')
    monkeypatch.chdir(sources)
    write_engine(SIM, tmp_path)
    command = shlex.join((sys.executable, "-SE", str(INTERPRETER), str(tmp_path / "engine.json")))
    _write_script(tmp_path / "bin" / "python", f'exec {command} "$@"')
    _write_script(tmp_path / "bin" / "tritonserver", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    runtime = tmp_path / "machine" / "runtime"
    (runtime / "models").mkdir(parents=True)
    for name in ("__init__.py", "models/llmapi.py"):
        (runtime / name).touch()
    return Machine(home_folder, sources, runtime.parent, tmp_path / "bin" / "python")


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    """Return the address of a fake hub in another process, since this process is forked."""
    with subprocess.Popen(
        (sys.executable, "-m", "tests.faults.hub_server"),
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture(scope="module")
def certificates() -> ssl.SSLContext:
    """Return what each command would read again for its HTTP client."""
    return ssl.create_default_context()


@pytest.fixture
def hub(
    hub_url: str,
    home_folder: Path,
    certificates: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let commands use the fake hub, with the cache in TLLM_HOME, and download files in order."""

    def map_in_order(download: Callable[[Any], Any], files: Iterable[Any], **_: Any) -> list[Any]:
        return [download(each) for each in files]

    monkeypatch.setattr("huggingface_hub._snapshot_download.thread_map", map_in_order)
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: certificates)
    monkeypatch.setenv("HF_ENDPOINT", hub_url)
    monkeypatch.setenv("HF_HUB_CACHE", str(home_folder / CACHE))


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.whole_runtime
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_command_survives_each_fault(
    name: str,
    machine: Machine,
    hub: None,
    is_full: bool,
    note_faults: Callable[[str, Iterable[str]], None],
) -> None:
    rehearsal = Rehearsal(machine, SCENARIOS[name])
    # Scenarios share many lines, so start with another fault in each.
    first = list(SCENARIOS).index(name)
    faults = rehearsal.all_faults() if is_full else rehearsal.chosen_faults(first)
    problems = []
    for fault, at in faults:
        problems += rehearsal.inject(fault, at)
    note_faults("file", (fault for fault, _ in faults))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("kind", [READING, READ, "open", "write", "os.rename"])
def test_default_faults_include_each_kind(kind: str) -> None:
    operations = [Operation(kind, "file", (f"module.py:{line}",)) for line in range(4 * SHARE)]
    chosen = [choose_faults(operations, first) for first in range(SHARE)]
    assert all({fault for fault, _ in each} == set(faults_of(kind)) for each in chosen)
    assert {at for each in chosen for _, at in each} == set(range(4 * SHARE))


@pytest.mark.parametrize("num_lines", [1, 2, 3])
def test_scenario_with_few_lines_has_a_default_fault(num_lines: int) -> None:
    operations = [Operation("write", "file", (f"module.py:{line}",)) for line in range(num_lines)]
    assert all(choose_faults(operations, first) for first in range(SHARE))
