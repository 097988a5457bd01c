"""Run a mixed load on a server for a long time, kill its processes, and check that nothing is lost.

    make soak MINUTES=60
    python benchmarks/soak.py [--minutes 60] [--engine sim|openvino|both] [--output soak-result]
                              [--round-s 60] [--sample-s 5] [--warmup-s 60] [--http-port 8140]

Serves a simulated engine, whose responses are known, and then the demo engine. Clients send streams
and whole requests over gRPC, HTTP and the OpenAI-compatible gateway. They cancel, disconnect, use
guides and LoRA adapters, and send invalid requests. In each round, the load runs for `--round-s`
seconds. In two thirds of the rounds, the engine worker, the gateway or a Python stub is killed with
SIGKILL.

Checks each response, and after each round that all slots are free and that the metrics equal the
clients' counts. At the end, checks that memory, file descriptors, threads and shared memory have
not grown, that the logs have no unexpected errors, and that no process is left. Writes the samples
and `soak.html` to the output folder. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import psutil
from soak_engines import ENGINES, import_engine
from soak_growth import list_shared_memory, measure_growth, processes_of, watching
from soak_logs import find_errors
from soak_report import Result, print_summary, write_result
from soak_run import Soak

from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.server_processes import wait_until_dead
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home

_END_LIMIT_S = 60.0


def main() -> None:
    """Run the soak test of each engine, write the results, and exit with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="total duration")
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument("--output", type=Path, default=Path("soak-result"))
    parser.add_argument("--round-s", type=float, default=60.0)
    parser.add_argument("--sample-s", type=float, default=5.0)
    parser.add_argument(
        "--warmup-s", type=float, default=60.0, help="excluded time after each process has started"
    )
    parser.add_argument("--http-port", type=int, default=8140, help="the first of four ports")
    arguments = parser.parse_args()
    names = list(ENGINES) if arguments.engine == "both" else [arguments.engine]
    home = find_home()
    results = []
    for name in names:
        seconds = arguments.minutes * 60 / len(names)
        results.append(soak_engine(name, home, seconds, arguments))
        write_result(results[-1], arguments.output / name)
        print_summary(results[-1])
    sys.exit(1 if any(each.problems for each in results) else 0)


def soak_engine(name: str, home: Home, seconds: float, arguments: argparse.Namespace) -> Result:
    """Serve an engine, run the load, stop the server, and check what it leaves behind."""
    options = import_engine(name, home)
    ports = ("http_port", "grpc_port", "metrics_port", "openai_port")
    numbers = {port: arguments.http_port + number for number, port in enumerate(ports)}
    engine = ENGINES[name]
    overrides = {**numbers, "openai_processes": 1, **options}
    plan = plan_for_this_machine(home, (engine.profile.model,), overrides)
    server = launch(plan, on_progress=lambda loading: None)
    try:
        soak = Soak(server, engine)
        with watching(server, arguments.sample_s, soak.count_active) as watch:
            soak.run(seconds, arguments.round_s, lambda line: print(f"{name}: {line}", flush=True))
    finally:
        processes = list_processes(server)
        stop_server(server)
    growth = measure_growth(watch.samples, arguments.warmup_s, engine.worker_growth_mb)
    problems = [
        *soak.problems,
        *(each.problem for each in growth if each.problem),
        *find_leftovers(server, processes),
        *find_errors(server.directory),
    ]
    return Result(name, soak, watch, growth, problems)


def list_processes(server: RunningServer) -> list[psutil.Process]:
    """Return the server's processes, or an empty list if its supervisor has ended."""
    with contextlib.suppress(psutil.Error):
        return processes_of(server)
    return []


def find_leftovers(server: RunningServer, processes: list[psutil.Process]) -> list[str]:
    """Return a message for each process and shared memory file that a stopped server has left."""
    alive = wait_until_dead(processes, _END_LIMIT_S)
    left = [f"the process {each.pid} ({each.name()}) is still running" for each in alive]
    return left + [f"{each} was not removed" for each in list_shared_memory(server)]


if __name__ == "__main__":
    main()
