"""Compare the OpenAI-compatible gateway with vLLM's server on the same GPU.

Both servers run the same checkpoint with the same engine arguments, and share the GPU's memory.
Their loads alternate, so that clocks and temperatures affect both. The gateway is measured with the
default number of processes and with one process.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
from gpu_check import FIRST_TOKEN, Check
from gpu_models import text_of
from gpu_served import PORTS, served
from gpu_vllm import RAW_PORT, end_group, serving, wait_for_port
from openai_streams import ChatClients, chat_bodies

from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.gateway_process import CONFIG_FILE

# Fraction of the GPU's memory for each of the two engines.
HALF_OF_MEMORY = 0.44
_SINGLE_PORT = 8175
_PROMPT_LENGTH = 128
# Maps a number of streams to the rounds of requests in a measurement with at most as many streams.
_WAVES = {1: 6, 64: 4, 256: 4, 1024: 2}
_NUM_CLIENTS = 4


@dataclass(frozen=True)
class FrontEnd:
    """A server to measure: its port, the name of its model, and its main process."""

    port: int
    model: str
    process_id: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of the processes that serve HTTP, without the engine's processes."""
        main = psutil.Process(self.process_id)
        family = [main, *main.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in family if not _is_engine(each))


def check_gateway(check: Check) -> dict[str, Any]:
    """Measure chat streams of the gateway and of vLLM's server alternately."""
    half = replace(check, gpu_memory=HALF_OF_MEMORY)
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(served(half, check.grouped))
        fronts = {
            "gateway": FrontEnd(PORTS["openai_port"], "gpu-check", find_gateway(server)),
            "gateway, 1 process": stack.enter_context(_single_gateway(check, server)),
        }
        if not check.is_rehearsal:
            process_id = stack.enter_context(serving(half, check.grouped))
            fronts["vllm serve"] = FrontEnd(RAW_PORT, "m", process_id)
        clients = stack.enter_context(ChatClients(_NUM_CLIENTS))
        for round_number in range(check.sizes.chat_rounds + 1):
            for number in check.sizes.chat_streams:
                for index, (name, front) in enumerate(fronts.items()):
                    row = _measure(check, clients, front, number, (round_number, number, index))
                    # The first round warms up the kernels and the tokenizers.
                    if round_number:
                        rows.append({"server": name, "streams": number, **row})
            check.found["gateway"] = {"rows": rows, "medians": _medians(rows)}
            check.save()
    return check.found["gateway"]


def _measure(
    check: Check, clients: ChatClients, front: FrontEnd, streams: int, seed: tuple[int, ...]
) -> dict[str, Any]:
    num_tokens = check.sizes.stream_tokens
    waves = next(waves for most, waves in _WAVES.items() if streams <= most)
    # All prompts are different, because both gateways use the prefix cache of the same engine.
    rng = np.random.default_rng(seed)
    shape = (streams * waves, _PROMPT_LENGTH)
    prompts = rng.integers(FIRST_TOKEN, check.sizes.grouped_shape["vocab_size"], shape).tolist()
    bodies = chat_bodies(front.model, [text_of(prompt) for prompt in prompts], num_tokens)
    before_s = front.cpu_seconds()
    row = clients.run(front.port, bodies, streams)
    if "errors" in row:
        return row
    cores = (front.cpu_seconds() - before_s) / row["duration_s"]
    return {**row, "num_lost": len(bodies) * num_tokens - row["num_tokens"], "cores": cores}


def _medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the median of each metric over the rounds, for each server and number of streams."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["server"], row["streams"]), []).append(row)
    return [
        {"server": server, "streams": streams}
        | {
            name: statistics.median(row[name] for row in group)
            for name in group[0]
            if isinstance(group[0][name], (int, float)) and all(name in row for row in group)
        }
        for (server, streams), group in sorted(groups.items(), key=lambda item: item[0][1])
    ]


@contextlib.contextmanager
def _single_gateway(check: Check, server: RunningServer) -> Iterator[FrontEnd]:
    """Run a second gateway, with one process, in front of the same server."""
    config = json.loads((server.directory / CONFIG_FILE).read_text())
    file = check.work / "gateway-single.json"
    file.write_text(json.dumps({**config, "port": _SINGLE_PORT, "num_processes": 1}))
    with (check.work / "gateway-single.log").open("wb") as log:
        process = subprocess.Popen(
            (sys.executable, "-m", "trtllm_serve_cli.gateway", str(file)),
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for_port(_SINGLE_PORT, process)
            yield FrontEnd(_SINGLE_PORT, "gpu-check", process.pid)
        finally:
            end_group(process)


def find_gateway(server: RunningServer) -> int:
    children = psutil.Process(server.state.supervisor_pid).children()
    (gateway,) = (each for each in children if "trtllm_serve_cli.gateway" in each.cmdline())
    return gateway.pid


def _is_engine(process: psutil.Process) -> bool:
    command = process.cmdline()
    return bool(command) and command[0].startswith("VLLM")


def table(medians: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table with the medians."""
    lines = [
        f"{'server':24} streams  tokens/s  lost  tok/chunk  TTFT p50 / p99 ms    ITL p50 / p99 ms"
        "  cores"
    ]
    for row in medians:
        name = f"{row['server']:24} {row['streams']:7}"
        if "tokens_per_s" not in row:
            lines.append(f"{name}  failed")
            continue
        lines.append(
            f"{name}  {row['tokens_per_s']:8.0f}  {row['num_lost']:4.0f}  "
            f"{row['tokens_per_chunk']:9.3f}  {row['ttft_p50_ms']:8.1f} / {row['ttft_p99_ms']:6.1f}"
            f"  {row['itl_p50_ms']:9.2f} / {row['itl_p99_ms']:6.1f}  {row['cores']:6.2f}"
        )
    return lines
