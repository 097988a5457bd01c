"""Two Triton servers started by mpirun."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.e2e.conftest import Tllm, simulated
from tests.ports import free_ports
from tests.waiting import wait_until
from trtllm_serve_cli.launch.supervisor.server_processes import wait_until_dead
from trtllm_serve_cli.runtime.watch.token_probe import count_steps

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun (apt-get install openmpi-bin)"
)

PROMPT = "The capital of France is"


@pytest.fixture
def in_two(light: Tllm, source: str, tmp_path: Path) -> Iterator[Tllm]:
    """Serve a simulated engine as two ranks with one model each."""
    repository = str(tmp_path / "repository")
    tllm = light.with_own_home(tmp_path / "home")
    layout = ("--layout", "llmapi", "--repo", repository)
    tllm.done("import", "-m", "demo", *simulated(source, tmp_path), *layout)
    # The second rank uses the three ports after those of the first rank.
    http, grpc, metrics, *_, openai_port = free_ports(7)
    tllm.done(
        "start", "--repo", repository, "--mode=mpi", "--world-size=2", "--oversubscribe",
        f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}",
        f"--openai-port={openai_port}",
    )  # fmt: skip
    yield tllm
    tllm("stop", "--all")


def generate(address: str) -> str:
    """Return the text that a rank generates after the prompt."""
    body = {"text_input": PROMPT, "sampling_param_max_tokens": 3}
    url = f"http://{address}/v2/models/tensorrt_llm/generate"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
        text = str(json.load(answer)["text_output"])
    assert text.startswith(PROMPT)
    return text.removeprefix(PROMPT)


def ask_gateway(address: str, number: int) -> str:
    """Return the response to a chat completion through the gateway."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": f"What is {number} plus {number}?"}],
            max_tokens=4,
            temperature=0,
        )
        return answer.choices[0].message.content or ""


def assert_gateway_uses_every_rank(status: dict[str, Any]) -> None:
    """Assert that the gateway distributes simultaneous requests over the ranks."""
    ranks = [each["metrics"] for each in (status, *status["replicas"])]
    before = [count_steps(each) for each in ranks]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(partial(ask_gateway, status["openai"]), range(8)))
    for rank, count in zip(ranks, before, strict=True):
        # The page may not have counted the three steps of the last request before this function.
        wait_until(lambda rank=rank, count=count: count_steps(rank) > count + 3)


def processes_of(tllm: Tllm) -> list[psutil.Process]:
    supervisor = psutil.Process(tllm.status()["supervisor_pid"])
    return [supervisor, *supervisor.children(recursive=True)]


def ranks_of(tllm: Tllm) -> dict[str, psutil.Process]:
    tritons = (each for each in processes_of(tllm) if each.name() == "tritonserver")
    return {each.environ()["OMPI_COMM_WORLD_RANK"]: each for each in tritons}


def test_two_ranks_serve_restart_and_stop(in_two: Tllm) -> None:
    status, ranks = in_two.status(), ranks_of(in_two)
    assert (sorted(ranks), len(status["replicas"])) == (["0", "1"], 1)
    # Neither rank is bound to a core.
    assert {tuple(each.cpu_affinity()) for each in ranks.values()} == {
        tuple(psutil.Process().cpu_affinity())
    }
    assert in_two.done("infer", PROMPT, "--raw", "--max-tokens=3").strip()
    assert generate(status["http"])
    assert generate(status["replicas"][0]["http"])
    assert_gateway_uses_every_rank(status)

    ranks["1"].send_signal(signal.SIGKILL)
    (server,) = (in_two.home / "servers").iterdir()
    wait_until(lambda: in_two.state().restarts == 1)
    assert f"rank 1 (process {ranks['1'].pid}) died" in in_two.status()["why"]
    wait_until(lambda: in_two.state().phase == "ready", 180)
    assert generate(status["http"])

    everything = processes_of(in_two)
    in_two.done("stop")
    alive = wait_until_dead(everything, 20)
    port = status["http"].rpartition(":")[2]
    assert (alive, list(Path("/dev/shm").glob(f"tllm-{port}-*"))) == ([], [])
    assert "Exit timeout expired" not in (server / "server.log").read_text()
