"""Measure downloads from the hub, compared with huggingface_hub and curl.

    python benchmarks/hub.py [--rounds 5] [--files 4] [--megabytes 256] [--per-connection 0]

A separate server process on loopback implements the part of the hub's API that downloads use. Each
round fetches the same files three times into an empty folder, each time in a new process: with
`curl --parallel`, with huggingface_hub's `snapshot_download`, and like `tllm import`, whose time
includes the SHA-256 of every file. `--per-connection` limits each connection to that many MB/s, as
a network does. Without it, the download and the server compete for the processors, so the CPU time
is reported, too. Ratios are computed within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
SERVER = """
import sys, time
from tests.fakes import hub as fake_hub
from tests.samples.checkpoints import hf_files, safetensors
num_files, megabytes, per_connection = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
files = hf_files()
del files["model.safetensors"]
data = safetensors(megabytes * 250_000)
for number in range(1, num_files + 1):
    # One byte differs: the hub's cache keeps equal files once.
    name = f"model-{number:05}-of-{num_files:05}.safetensors"
    files[name] = data[:-1] + bytes([number])
hashes = {}
hub = fake_hub.FakeHub(files)
hub.sha256 = lambda name, hash=hub.sha256: hashes.get(name) or hashes.setdefault(name, hash(name))

def send_body(handler, name, data):
    started_s, step = time.perf_counter(), 1 << 18
    for start in range(0, len(data), step):
        handler.wfile.write(data[start : start + step])
        if per_connection:
            due_s = started_s + (start + step) / (per_connection * 1e6)
            time.sleep(max(0.0, due_s - time.perf_counter()))

fake_hub._Handler._send_body = send_body
with fake_hub.serve(hub):
    for name in files:
        hub.sha256(name)
    print(hub.url, flush=True)
    sys.stdin.read()
"""
HUGGINGFACE_HUB = """
import sys
from huggingface_hub import snapshot_download
snapshot_download("acme/tiny", cache_dir=sys.argv[2], endpoint=sys.argv[1])
"""
TLLM = """
import sys
from pathlib import Path
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.sources.checkpoint import FetchOptions
from trtllm_serve_cli.sources.fetch import fetch_checkpoint
from trtllm_serve_cli.sources.hub.hub_source import HubSource
from trtllm_serve_cli.sources.hub_address import Hub
folder = Path(sys.argv[2])
fetch_checkpoint(HubSource("acme/tiny"), home=Home(folder / "home", folder / "engines"),
                 options=FetchOptions(), notify=lambda text: None, hub=Hub(sys.argv[1], folder))
"""
COMMIT = "c0ffee" + "0" * 34


def measure_s(kind: str, url: str, files: list[str]) -> tuple[float, float]:
    """Return the wall time and CPU time to download all files into an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "curl":
            urls = [f"{url}/acme/tiny/resolve/{COMMIT}/{name}" for name in files]
            command = [
                "curl",
                "--silent",
                "--no-progress-meter",
                "--fail",
                "--parallel",
                "--parallel-immediate",
                "--remote-name-all",
                *urls,
            ]
        else:
            code = TLLM if kind == "tllm" else HUGGINGFACE_HUB
            command = [sys.executable, "-c", code, url, folder]
        environ = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        started_s, started_cpu_s = time.perf_counter(), _children_cpu_s()
        subprocess.run(command, check=True, cwd=folder, env=environ, stderr=subprocess.DEVNULL)
        return time.perf_counter() - started_s, _children_cpu_s() - started_cpu_s


def _children_cpu_s() -> float:
    """Return the CPU time of ended children, which exclude the server."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def serve(num_files: int, megabytes: int, per_connection: float) -> Iterator[str]:
    """Run a server with that many files of that size, and yield its address."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(num_files), str(megabytes), str(per_connection)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    with server:
        yield server.stdout.readline().strip()
        server.stdin.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--per-connection", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    total = arguments.files * arguments.megabytes
    names = [
        f"model-{number:05}-of-{arguments.files:05}.safetensors"
        for number in range(1, arguments.files + 1)
    ]
    kinds = ("curl", "huggingface_hub", "tllm")
    with serve(arguments.files, arguments.megabytes, arguments.per_connection) as url:
        rounds = [
            {kind: measure_s(kind, url, names) for kind in kinds} for _ in range(arguments.rounds)
        ]
    result = {
        kind: {
            "mb_per_s": [total / each[kind][0] for each in rounds],
            "cpu_s_per_gb": statistics.median(each[kind][1] / total * 1000 for each in rounds),
            "tllm_to_this": statistics.median(each[kind][0] / each["tllm"][0] for each in rounds),
        }
        for kind in kinds
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{arguments.files} files of {arguments.megabytes} MB")
    print(f"{'':16} {'CPU s/GB':>9} {'tllm/this':>10}   MB/s in each round")
    for kind, each in result.items():
        rates = " ".join(f"{rate:6.0f}" for rate in each["mb_per_s"])
        print(f"{kind:16} {each['cpu_s_per_gb']:9.2f} {each['tllm_to_this']:10.2f}   {rates}")


if __name__ == "__main__":
    main()
