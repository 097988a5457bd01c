"""Serve upstream's own model repositories with the emulator of the C++ backend, and print a table.

    python -m tests.e2e.upstream_repositories CHECKOUT [TAG…]

CHECKOUT is a clone of triton-inference-server/tensorrtllm_backend. For each tag, the program fills
that tag's repository with `tllm set --repo` and starts it with `tllm start --repo`. It then sends
requests with `tllm infer`, `tllm bench` and that tag's client programs. It also runs the client
programs with a repository that `tllm import` renders for an engine of that version. The program
needs the packages that upstream's models and clients import: transformers, torch, pillow and
tritonclient.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.conftest import MAKE_LETTERS
from tests.e2e.cpp_backend import EmulatedTllm, import_engine, make_engine, make_tllm

TAGS = ("v0.9.0", "v0.11.0", "v0.14.0", "v0.16.0", "v0.19.0")
FOLDERS = ("all_models/inflight_batcher_llm", "inflight_batcher_llm/client")
# Up to v0.14.0, upstream's tensorrt_llm_bls does not load with Python 3.11 or later ("mutable
# default <class 'numpy.ndarray'> … is not allowed").
LAST_WITHOUT_BLS = (0, 14)
VALUES = {
    "batching_strategy": "inflight_fused_batching",
    "bls_instance_count": "1",
    "decoupled_mode": "true",
    "enable_kv_cache_reuse": "false",
    "encoder_input_features_data_type": "TYPE_FP16",
    "logits_datatype": "TYPE_FP32",
    "max_queue_delay_microseconds": "0",
    "max_queue_size": "0",
    "postprocessing_instance_count": "1",
    "preprocessing_instance_count": "1",
    "triton_backend": "tensorrtllm",
    "triton_max_batch_size": "8",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("tags", nargs="*", default=TAGS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        letters = Path(folder, "letters")
        command = (sys.executable, "-W", "ignore", "-c", MAKE_LETTERS, str(letters))
        subprocess.run(command, check=True)
        for tag in options.tags:
            for name, result in run_tag(options.checkout, tag, Path(folder, tag), letters):
                print(f"| {tag} | {name} | {result} |", flush=True)


def run_tag(checkout: Path, tag: str, folder: Path, letters: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the result of each step."""
    folder.mkdir()
    archive = folder / "upstream.tar"
    command = ("git", "-C", str(checkout), "archive", "-o", str(archive), tag, *FOLDERS)
    subprocess.run(command, check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    repository = folder / "all_models" / "inflight_batcher_llm"
    major, minor = map(int, tag.removeprefix("v").split(".")[:2])
    if (major, minor) <= LAST_WITHOUT_BLS:
        shutil.rmtree(repository / "tensorrt_llm_bls")
    tllm = make_tllm(folder)
    engine = make_engine(folder / "engine", tag.removeprefix("v"))
    values = VALUES | {"tokenizer_dir": str(letters), "engine_dir": str(engine)}
    variables = {
        name
        for path in repository.glob("*/config.pbtxt")
        for name in values
        if f"${{{name}}}" in path.read_text(encoding="utf-8")
    }
    pairs = [f"{name}={values[name]}" for name in sorted(variables)]
    yield "tllm set --repo", _outcome(tllm("set", "--repo", str(repository), *pairs))
    yield "tllm validate --repo", _outcome(tllm("validate", "--repo", str(repository)))
    started = tllm.start("--repo", str(repository))
    yield "tllm start --repo", _outcome(started)
    if started.returncode == 0:
        try:
            yield from _send(tllm, repository)
            yield from _run_clients(tllm, folder, letters)
        finally:
            tllm("stop", "--all")
    import_engine(tllm, "mine", engine, letters)
    started = tllm.start("-m", "mine")
    yield "tllm import, tllm start", _outcome(started)
    if started.returncode == 0:
        try:
            for name, result in _run_clients(tllm, folder, letters):
                yield f"tllm import, {name}", result
        finally:
            tllm("stop", "--all")


def _send(tllm: EmulatedTllm, repository: Path) -> Iterator[tuple[str, str]]:
    endpoint = tllm.endpoint()
    for model in ("ensemble", "tensorrt_llm_bls"):
        if not (repository / model).exists():
            continue
        for interface, address in (("grpc", endpoint.grpc), ("http", endpoint.http)):
            for mode in ("--stream", "--no-stream"):
                command = ("infer", "abc", "--raw", "--json", "--max-tokens=7", "--seed=1", mode)
                ran = tllm(*command, "-u", address, "-i", interface, "-m", model)
                is_right = not ran.returncode and json.loads(ran.stdout)["text_output"] == "bcdbcdb"
                name = f"tllm infer {mode} -i {interface} -m {model}"
                yield name, "ok" if is_right else f"failed: {ran.stdout}{ran.stderr}"
    counts = ("--num-requests=10", "--input-mean=9", "--output-mean=5")
    deviations = ("--input-stdev=0", "--output-stdev=0")
    ran = tllm("bench", "token-norm-dist", *counts, *deviations)
    yield "tllm bench token-norm-dist", _outcome(ran)


def _run_clients(tllm: EmulatedTllm, folder: Path, letters: Path) -> Iterator[tuple[str, str]]:
    clients, endpoint = folder / "inflight_batcher_llm" / "client", tllm.endpoint()
    tokens = folder / "prompt.csv"
    tokens.write_text("97,98,99\n")
    ids = ("--input-tokens-csv", str(tokens), "--request-output-len=8", "--tokenizer-dir")
    for arguments in (
        ("inflight_batcher_llm_client.py", "--streaming", *ids, str(letters)),
        ("end_to_end_grpc_client.py", "-p=abc", "-o=8", "--streaming"),
        ("end_to_end_grpc_client.py", "-p=abc", "-o=8"),
    ):
        program, *options = arguments
        command = (sys.executable, str(clients / program), *options, "-u", endpoint.grpc)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        shown = " ".join(option for option in options if option in ("--streaming",))
        yield f"{program} {shown}".strip(), _outcome(ran)


def _outcome(ran: subprocess.CompletedProcess[str]) -> str:
    if ran.returncode == 0:
        return "ok"
    return f"exit code {ran.returncode}: {' '.join((ran.stdout + ran.stderr).split())[-300:]}"


if __name__ == "__main__":
    main()
