"""Compare the OpenAI-compatible gateway with vLLM's server on the same GPUs.

Both servers run the same checkpoint with the same engine arguments, and share the GPUs' memory.
Their loads alternate, so that clocks and temperatures affect both. With one engine, the gateway is
measured with the default number of processes and with one process. With several engines, it is
measured with its connections to the engines' workers, and with requests through Triton. vLLM's
server then has one engine per GPU (data parallelism) and one API server per engine of the gateway.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
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
from trtllm_serve_cli.sizing.gpus import find_gpus

# Fraction of each GPU's memory for each of the two servers.
HALF_OF_MEMORY = 0.44
# The KV cache of each engine if engines share a GPU: 512 streams of 256 tokens.
_SHARED_KV_BYTES = 16 << 30
_SECOND_PORT = 8175
_PROMPT_LENGTH = 128
# Maps a number of streams to the rounds of requests in a measurement with at most as many streams.
_WAVES = {1: 6, 64: 4, 256: 4, 2048: 2}
_NUM_CLIENTS = 4
# More streams over Triton would only take longer.
_MOST_OVER_TRITON = 256


@dataclass(frozen=True)
class FrontEnd:
    """A server to measure: its port, the name of its model, and its main process.

    `most_streams` is the largest number of streams to measure.
    """

    port: int
    model: str
    process_id: int
    most_streams: float = math.inf

    def cpu_seconds(self) -> float:
        """Return the CPU time of the processes that serve HTTP, without the engine's processes."""
        main = psutil.Process(self.process_id)
        family = [main, *main.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in family if not _is_engine(each))


def check_gateway(check: Check) -> dict[str, Any]:
    """Measure chat streams of the gateway and of vLLM's server alternately."""
    half = replace(check, gpu_memory=HALF_OF_MEMORY)
    with (
        served(half, check.grouped) as server,
        _second_gateway(check, server, num_processes=1) as single,
        _vllm_server(half) as vllm,
    ):
        fronts = {"gateway": _gateway(server), "gateway, 1 process": single, **vllm}
        return _alternate(check, "gateway", fronts, check.sizes.chat_streams)


def check_engines(check: Check) -> dict[str, Any]:
    """Measure the same with several engines: one on each GPU in `check.engine_gpus`."""
    groups = check.engine_gpus.split(";")
    gpus = sorted(set(groups))
    num_found = len(find_gpus())
    if max(map(int, gpus)) >= num_found and not check.is_rehearsal:
        needed = ", ".join(gpus)
        return {"left_out": f"the engines need GPUs {needed}, but the machine has {num_found}"}
    half = replace(check, gpu_memory=HALF_OF_MEMORY)
    # vLLM cannot measure the free memory while another engine loads on the same GPU.
    memory = {"kv_cache_memory_bytes": _SHARED_KV_BYTES} if len(gpus) < len(groups) else {}
    engines = replace(half, vllm_args=check.vllm_args | memory)
    parameters = {"gpu_device_ids": check.engine_gpus}
    flags = (f"--data-parallel-size={len(gpus)}", f"--api-server-count={len(groups)}")
    with (
        served(engines, check.grouped, more_parameters=parameters) as server,
        # Without the server's folder, a gateway does not find the engines' workers.
        _second_gateway(check, server, server_directory=None) as over_triton,
        _vllm_server(half, *flags) as vllm,
    ):
        over_triton = replace(over_triton, most_streams=_MOST_OVER_TRITON)
        fronts = {"gateway": _gateway(server), "gateway, over Triton": over_triton, **vllm}
        most = check.sizes.max_batch_size * len(gpus)
        streams = [each for each in check.sizes.engine_streams if each <= most]
        return _alternate(check, "engines", fronts, streams)


def _alternate(
    check: Check, part: str, fronts: dict[str, FrontEnd], streams: Iterable[int]
) -> dict[str, Any]:
    """Measure each server with each number of streams, and save the results so far."""
    rows: list[dict[str, Any]] = []
    with ChatClients(_NUM_CLIENTS) as clients:
        for round_number in range(check.sizes.chat_rounds + 1):
            for number in streams:
                for index, (name, front) in enumerate(fronts.items()):
                    if number > front.most_streams:
                        continue
                    row = _measure(check, clients, front, number, (round_number, number, index))
                    # The first round warms up the kernels and the tokenizers.
                    if round_number:
                        rows.append({"server": name, "streams": number, **row})
                        check.found[part] = {"rows": rows, "medians": _medians(rows)}
                        check.save()
    return check.found[part]


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
def _vllm_server(check: Check, *flags: str) -> Iterator[dict[str, FrontEnd]]:
    """Run vLLM's server, except in a rehearsal: the tests' stand-in for vLLM has no server."""
    if check.is_rehearsal:
        yield {}
        return
    with serving(check, check.grouped, *flags) as process_id:
        yield {"vllm serve": FrontEnd(RAW_PORT, "m", process_id)}


def _gateway(server: RunningServer) -> FrontEnd:
    return FrontEnd(PORTS["openai_port"], "gpu-check", find_gateway(server))


@contextlib.contextmanager
def _second_gateway(check: Check, server: RunningServer, **changes: Any) -> Iterator[FrontEnd]:
    """Run a second gateway in front of the same server, with changes of its configuration."""
    config = json.loads((server.directory / CONFIG_FILE).read_text())
    file = check.work / "gateway-second.json"
    file.write_text(json.dumps({**config, "port": _SECOND_PORT, **changes}))
    with (check.work / "gateway-second.log").open("wb") as log:
        process = subprocess.Popen(
            (sys.executable, "-m", "trtllm_serve_cli.gateway", str(file)),
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for_port(_SECOND_PORT, process)
            yield FrontEnd(_SECOND_PORT, "gpu-check", process.pid)
        finally:
            end_group(process)


def find_gateway(server: RunningServer) -> int:
    children = psutil.Process(server.state.supervisor_pid).children()
    (gateway,) = (each for each in children if "trtllm_serve_cli.gateway" in each.cmdline())
    return gateway.pid


def _is_engine(process: psutil.Process) -> bool:
    command = process.cmdline()
    # Several API servers of vLLM have titles, too: VLLM::APIServer_0.
    return bool(command) and command[0].startswith(("VLLM::EngineCore", "VLLM::Worker"))


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
