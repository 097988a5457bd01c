"""Make each file operation of the build steps fail, and check the engine that is built.

The steps are those of tllm's own code: `describe_step` for each engine kind that writes files, and
`gguf_step` with a fake of OpenVINO GenAI. A rehearsal records the file operations of a step. The
build then runs again with a fault in one of them. After each fault:

- no engine exists, unless the build succeeded
- the error has what happened, why and what to do next
- the next build succeeds, with the same files

By default, a sixth of the lines fail, with faults that take turns. With --full, each operation
fails with all faults.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.faults.file_operations import (
    READS,
    Operation,
    Place,
    PlaceFinder,
    choose_faults,
    fail,
    faults_of,
    read_operations,
    watch,
)
from tests.samples.builds import ENGINE, build_plan
from tests.samples.checkpoints import llama_gguf
from tests.samples.tensorrt_engines import write_engine as write_tensorrt_engine
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build import run as build_run
from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.build_step import WORK, BuildStep
from trtllm_serve_cli.build.engine import write_engine
from trtllm_serve_cli.build.run import build_engine
from trtllm_serve_cli.engine_kinds import describe_step
from trtllm_serve_cli.engine_kinds.openvino import gguf_step
from trtllm_serve_cli.errors import BuildFailed
from trtllm_serve_cli.sources.checkpoint import Checkpoint

# A program that exists, so that the build starts. Its work is done by this process.
_FAKE = ("true",)
_SIMULATION = {"timing": {"step_s": 0.002}}
_MODULES = {"describe_step": describe_step, "gguf_step": gguf_step}


class StepRuns:
    """Builds an engine in `folder`, with steps in forked children of this process.

    `place` is the operation that fails with `fault`, or None.
    """

    def __init__(self, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = folder / "engines" / "mine"
        self._record = folder / "operations"
        self._sources = folder / "sources"
        self._plan = self._make_plan(kind)
        self._fault = ""
        self._place: Place | None = None
        monkeypatch.setattr(build_run, "run_logged", self._run_logged)

    def build(self, fault: str = "", place: Place | None = None) -> None:
        self._fault, self._place = fault, place
        self._record.write_bytes(b"")
        build_engine(self._plan, force=False, notify=lambda _: None)

    @property
    def operations(self) -> list[Operation]:
        return read_operations(self._record)

    def read_files(self) -> dict[str, bytes]:
        """Return the engine's files except the log, without the record of the build."""
        found = {
            str(path.relative_to(self.engine)): path.read_bytes()
            for path in self.engine.rglob("*")
            if path.is_file() and path.name != "build.log"
        }
        facts = json.loads(found["engine.json"])
        del facts["made"]
        return found | {"engine.json": json.dumps(facts).encode()}

    def _make_plan(self, kind: str) -> BuildPlan:
        self._sources.mkdir(parents=True)
        if kind == "gguf":
            path = self._sources / "mine.gguf"
            path.write_bytes(llama_gguf())
            command = (
                sys.executable,
                "-m",
                gguf_step.__name__,
                str(path),
                WORK,
                "--tokenizer-only",
            )
            convert = BuildStep("Convert", command, outputs=(f"{WORK}/openvino_tokenizer.xml",))
            return build_plan(self.engine, convert, BuildStep("Describe", (*_FAKE, WORK)))
        path = write_tokenizer(self._sources / "checkpoint")
        (path / "config.json").write_text('{"vocab_size": 9, "max_position_embeddings": 64}')
        checkpoint = Checkpoint(path, "hf", "hf:a/b@c", "c", "LlamaForCausalLM", 1)
        describe = describe_step.plan_describe_step(
            BuildRequest("mine", checkpoint, self.engine, kind),
            Toolchain(sys.executable), title="Describe", weights="auto", fingerprint="f1",
            details=_SIMULATION if kind == "sim" else None,
        )  # fmt: skip
        make = (BuildStep("Make", (*_FAKE, WORK)),) if kind == "tensorrt" else ()
        return build_plan(self.engine, *make, describe)

    def _run_logged(self, command: Sequence[str], log: Path, **_: Any) -> int:
        if command[:-1] == _FAKE:
            if len(self._plan.steps) > 1 and self._plan.steps[0].command[:-1] == _FAKE:
                write_tensorrt_engine(Path(command[-1]))
            else:
                write_engine(ENGINE, Path(command[-1]))
            return 0
        if (pid := os.fork()) == 0:
            self._run_child(command, log)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _run_child(self, command: Sequence[str], log: Path) -> NoReturn:
        code = 1
        gc.disable()
        try:
            written = os.open(log, os.O_WRONLY | os.O_APPEND)
            os.dup2(written, 1)
            os.dup2(written, 2)
            sys.argv = list(command[2:])
            self._watch(log)
            _MODULES[command[2].rpartition(".")[2]].main()
            code = 0
        except SystemExit as left:
            os.write(2, str(left.code).encode())
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _watch(self, log: Path) -> None:
        lines = self._record.open("a", buffering=1)
        find_place = PlaceFinder()

        def on_operation(operation: Operation, data: bytes, fd: int) -> None:
            if operation.path == str(log):
                return
            lines.write(json.dumps(asdict(operation)) + "\n")
            if find_place(operation) == self._place:
                fail(self._fault, operation, data, fd)

        watch((self.engine.parent, self._sources), on_operation)


def convert(link: str, **_: object) -> None:
    """Write the files that OpenVINO GenAI writes for a tokenizer."""
    for name in ("tokenizer", "detokenizer"):
        Path(link).with_name(f"openvino_{name}.xml").write_text("<net/>")


def find_problems(runs: StepRuns, fault: str, operation: Operation, place: Place) -> Iterator[str]:
    """Build with a fault, build again, and yield what is wrong."""
    try:
        runs.build(fault, place)
    except BuildFailed as error:
        if not (error.what and error.why and error.next_step):
            yield f"the message is incomplete: {error}"
        if runs.engine.exists():
            yield "a failed build left an engine"
    except OSError as error:
        yield f"the build ended with {error!r}"
    if place not in map(PlaceFinder(), runs.operations) and operation.kind not in READS:
        yield "the step did not reach the operation"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["sim", "tensorrt", "gguf"])
def test_build_survives_each_fault_of_a_step(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_full: bool,
    note_faults: Callable[[str, Iterable[str]], None],
) -> None:
    genai = SimpleNamespace(Tokenizer=convert)
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    runs = StepRuns(tmp_path / "build", kind, monkeypatch)
    runs.build()
    expected, operations = runs.read_files(), runs.operations
    places = list(map(PlaceFinder(), operations))
    every = [(f, at) for at, each in enumerate(operations) for f in faults_of(each.kind)]
    faults = every if is_full else choose_faults(operations, 0)
    problems = []
    for fault, at in faults:
        shutil.rmtree(runs.engine.parent)
        found = [*find_problems(runs, fault, operations[at], places[at])]
        runs.build()
        if runs.read_files() != expected:
            found.append("the next build left other files")
        problems += [f"{fault} at {operations[at]}: {each}" for each in found]
    note_faults("build step", (fault for fault, _ in faults))
    assert not problems, "\n".join(problems)
