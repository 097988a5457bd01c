"""Fixtures of end-to-end tests: one Triton server with the demo model, started by `tllm`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import forked_tllm
from tests.e2e.shallow import write_shallow
from tests.ports import free_ports
from trtllm_serve_cli.catalog.entries import resolve_alias
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.launch.server_state import ServerState, read_state
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.processes import last_lines
from trtllm_serve_cli.runtime.engines.openvino import grammar_check
from trtllm_serve_cli.sources.checkpoint import FetchOptions
from trtllm_serve_cli.sources.fetch import fetch_checkpoint
from trtllm_serve_cli.sources.registry import parse_source
from trtllm_serve_cli.sources.source import CheckpointSource

TLLM = str(Path(sys.executable).with_name("tllm"))
# The models that a request to `demo` does not need.
UNUSED = ("ensemble", "preprocessing", "postprocessing", "tensorrt_llm_bls")
# A checkpoint without weights; its byte-level tokenizer has ids in the order of characters.
MAKE_LETTERS = """
import json, sys
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: number for number, letter in enumerate(letters)}
tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, "</s>": 256}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
fast.save_pretrained(sys.argv[1])
config = {"vocab_size": 257, "max_position_embeddings": 256}
config["architectures"] = ["LettersForCausalLM"]
Path(sys.argv[1], "config.json").write_text(json.dumps(config))
"""
_FOLDER = pytest.StashKey[Path]()


@pytest.fixture(scope="session", autouse=True)
def log_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remember the folder with the files of all tests."""
    pytestconfig.stash[_FOLDER] = tmp_path_factory.getbasetemp()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of the latest logs of servers to the report of a failed test."""
    report = yield
    if report.failed and _FOLDER in item.config.stash:
        # A server that ends may remove its files.
        with contextlib.suppress(FileNotFoundError):
            logs = item.config.stash[_FOLDER].glob("**/servers/*/*.log")
            for log in sorted(logs, key=lambda each: each.stat().st_mtime)[-3:]:
                report.sections.append((f"end of {log}", "\n".join(last_lines(log, 40))))
    return report


@functools.cache
def start_fork_server() -> str:
    """Start a process whose forks run `tllm`, and return its name."""
    name = f"tllm-tests-{os.getpid()}"
    server = subprocess.Popen(
        (sys.executable, "-m", forked_tllm.__name__, "--serve", name),
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads, which forks would lack
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    atexit.register(end_fork_server, server)
    return name


def end_fork_server(server: subprocess.Popen[str]) -> None:
    """Close the pipes to the process, which makes it exit, and wait for it."""
    with server:
        pass


@dataclass(frozen=True)
class Tllm:
    """Runs `tllm` as a subprocess with its own TLLM_HOME."""

    home: Path

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "TLLM_HOME": str(self.home), "COLUMNS": "80"}

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        name = start_fork_server()
        return subprocess.run(
            (sys.executable, "-IS", forked_tllm.__file__, name, *words),
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            **options,
        )

    def done(self, *words: str, **options: Any) -> str:
        """Return the stdout of a command that must succeed."""
        result = self(*words, **options)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def engine(self, model: str) -> Path:
        """Return the engine folder of a model."""
        models = json.loads(self.done("list", "--json"))
        return next(Path(each["engine_dir"]) for each in models if each["name"] == model)

    def with_own_home(self, home: Path) -> Tllm:
        """Return another home with a copy of the checkpoints and engines, but without models."""
        for folder in (self.home / "checkpoints", self.home / "engines"):
            if folder.exists():
                shutil.copytree(folder, home / folder.name, symlinks=True)
        return Tllm(home)

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `tllm start` on free ports, without the gateway."""
        http, grpc, metrics = free_ports(3)
        ports = (f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}")
        return self("start", *ports, "--no-openai", *words)

    def status(self) -> dict[str, Any]:
        """Return the first server of `tllm status`."""
        servers: Sequence[dict[str, Any]] = json.loads(self.done("status", "--json"))["servers"]
        return servers[0]

    def state(self) -> ServerState:
        """Return the state file of the only server.

        Use it to poll: `tllm status` takes CPU time from a server that starts.
        """
        (server,) = (self.home / "servers").iterdir()
        state = read_state(server)
        assert state is not None
        return state

    def is_back(self, restarts: int) -> bool:
        """Return whether the only server is ready after at least this number of restarts.

        On a busy machine, a part that is slow after a restart can cause another restart.
        """
        state = self.state()
        return state.phase == "ready" and state.restarts >= restarts

    def endpoint(self) -> Endpoint:
        status = self.status()
        return Endpoint(grpc=status["grpc"], http=status["http"], metrics=status["metrics"])


@pytest.fixture(autouse=True)
def small_runtime() -> None:
    """Render models with the whole runtime package, because these tests serve them."""


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make a checkpoint of the demo model with fewer layers, and return its source."""
    folder = tmp_path_factory.mktemp("source")
    demo = parse_source(resolve_alias("demo").source)
    assert isinstance(demo, CheckpointSource)
    home, options = Home(folder, folder), FetchOptions()
    checkpoint = fetch_checkpoint(demo, home=home, options=options, notify=print)
    write_shallow(checkpoint.path, folder / "shallow.gguf")
    return f"gguf:{folder / 'shallow.gguf'}"


@pytest.fixture(scope="session")
def imported(source: str, tmp_path_factory: pytest.TempPathFactory) -> Tllm:
    """Import the model of `source` as `demo` into a new home."""
    tllm = Tllm(tmp_path_factory.mktemp("e2e") / "home")
    tllm.done("import", "-m", "demo", "-s", source)
    return tllm


@pytest.fixture(scope="session")
def imported_demo(tmp_path_factory: pytest.TempPathFactory) -> Tllm:
    """Import the demo model of the catalog into a new home."""
    tllm = Tllm(tmp_path_factory.mktemp("demo") / "home")
    tllm.done("import", "-m", "demo")
    return tllm


@pytest.fixture(scope="session")
def served(imported: Tllm) -> Iterator[Tllm]:
    """Serve the model of `imported`, and the OpenAI-compatible API."""
    yield from serve(imported)


@pytest.fixture(scope="session")
def served_demo(imported_demo: Tllm) -> Iterator[Tllm]:
    """Serve the demo model, and the OpenAI-compatible API."""
    yield from serve(imported_demo)


def serve(tllm: Tllm) -> Iterator[Tllm]:
    started = tllm.start("--openai", f"--openai-port={free_ports(1)[0]}")
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.fixture(scope="session")
def endpoint(served: Tllm) -> Endpoint:
    return served.endpoint()


@pytest.fixture(scope="session")
def engine_dir(imported: Tllm) -> Path:
    return imported.engine("demo")


@pytest.fixture(scope="session")
def quick_engine(imported: Tllm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an engine of one layer with the demo's tokenizer: hundreds of requests per second."""
    import openvino

    engine, folder = imported.engine("demo"), tmp_path_factory.mktemp("quick")
    for file in (engine / "engine.json", *engine.glob("openvino_*tokenizer.*")):
        (folder / file.name).symlink_to(file)
    vocab_size = json.loads((engine / "engine.json").read_text())["vocab_size"]
    openvino.save_model(grammar_check.make_model(vocab_size), folder / "openvino_model.xml")
    return folder


@pytest.fixture
def time_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit for checking guides in this process, for busy machines."""
    monkeypatch.setattr(grammar_check, "CHECK_LIMIT_S", 60.0)


def simulated(source: str, folder: Path) -> tuple[str, ...]:
    """Return options of `tllm import` for a simulated engine that generates a token in 5 ms."""
    timing = folder / "timing.json"
    limits = {"max_batch_size": 64}
    timing.write_text(json.dumps({"timing": {"step_s": 0.005}, "limits": limits}))
    return ("--source", source, "--engine", "sim", "--timing", str(timing))


@pytest.fixture(scope="session")
def light(source: str, tmp_path_factory: pytest.TempPathFactory) -> Tllm:
    """Import a simulated engine as `demo` into a new home."""
    folder = tmp_path_factory.mktemp("light")
    tllm = Tllm(folder / "home")
    tllm.done("import", "-m", "demo", *simulated(source, folder))
    return tllm


@pytest.fixture(scope="session")
def light_model(light: Tllm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a simulated engine as `demo`, without the models that a request does not need.

    A server of this repository starts two models, not six, and generates a token in 5 ms.
    """
    return without_models(light, tmp_path_factory.mktemp("light-model"), UNUSED)


def without_models(light: Tllm, folder: Path, unused: Sequence[str]) -> Path:
    """Return a copy in `folder` of the repository of `demo`, without the `unused` models.

    The copy uses the engine of the original model.
    """
    repository = folder / "demo"
    shutil.copytree(light.home / "models" / "demo", repository, symlinks=True)
    for name in unused:
        shutil.rmtree(repository / name)
    return repository


@contextlib.contextmanager
def homes_with(repository: Path, folder: Path) -> Iterator[Callable[[], Tllm]]:
    """Yield a function that makes a home with a copy of a model, and stop the servers at the end.

    The copy uses the engine of the original model.
    """
    made: list[Tllm] = []

    def make() -> Tllm:
        home = folder / "fresh"
        (home / "models").mkdir(parents=True)
        subprocess.run(("cp", "-r", str(repository), str(home / "models")), check=True)
        made.append(Tllm(home))
        return made[-1]

    yield make
    for tllm in made:
        tllm("stop", "--all", "--timeout", "0")


@pytest.fixture
def fresh_home(imported: Tllm, tmp_path: Path) -> Iterator[Callable[[], Tllm]]:
    """Provide a function that makes a home with the model of `imported`."""
    with homes_with(imported.home / "models" / "demo", tmp_path) as make:
        yield make


@pytest.fixture
def light_home(light_model: Path, tmp_path: Path) -> Iterator[Callable[[], Tllm]]:
    """Provide a function that makes a home with the light model, for tests of the life cycle."""
    with homes_with(light_model, tmp_path) as make:
        yield make


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint without weights whose tokenizer has a token for each byte."""
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs the extra `convert`: see the Makefile")
    folder = tmp_path_factory.mktemp("checkpoint") / "letters"
    command = (sys.executable, "-W", "ignore", "-c", MAKE_LETTERS, str(folder))
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder
