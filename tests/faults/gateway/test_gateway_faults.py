"""Make each file operation of a gateway fail, and damage its files, while it starts and serves.

A rehearsal records the file operations of a gateway that starts, serves requests, and reloads its
key file after a change and after the file was deleted. The gateway then runs again with a fault in
one of the operations, or with a damaged file. In all runs:

- no request without a valid key is accepted
- the gateway serves, or it ends before its first response with what happened, why and what next
- a key file that cannot be used is reported in the log, and does not end the gateway
- after a transient fault, the gateway accepts a new key
- no temporary file is left, except by a killed gateway, or by a removal that failed
- the next start in the same folder succeeds

By default, a sixth of the operations fail, with faults that take turns. With --full, each operation
fails with all faults. All damages are always tested.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.faults.file_operations import (
    CLEANUPS,
    KILL,
    READS,
    Operation,
    Place,
    PlaceFinder,
    find_faults,
)
from tests.faults.gateway.gateway_run import GatewayRun
from tests.samples.certificates import certify
from trtllm_serve_cli.gateway.access.keys import KEYS_MARKER, add_key, revoke_key
from trtllm_serve_cli.runtime.text.tokenizer import TransformersTokenizer

# uvicorn ends itself with SIGTERM after its shutdown.
STOPPED = -signal.SIGTERM
NoteFaults = Callable[[str, Iterable[str]], None]


def run_life(run: GatewayRun, fault: str = "", place: Place | None = None) -> Iterator[str]:
    """Start a gateway, change and delete its key file, stop it, and yield what is wrong."""
    run.start(fault, place)
    yield from _check_keys(run, "", "no-key")
    run.wait_until_loaded()
    accepted = run.request(run.key)
    bob = add_key(run.keys_file, "bob", now_s=1.0)
    revoke_key(run.keys_file, "alice")
    yield from _check_keys(run, "", "no-key")
    # A transient fault affects only one request.
    statuses = [run.request(bob) for _ in range(2)]
    if not run.has_ended() and statuses[-1] not in (200, 400):
        yield f"the new key was not accepted: {statuses}"
    if not run.has_ended() and not fault and accepted != 200:
        yield f"the first key was not accepted: {accepted}"
    yield from _check_keys(run, "", run.key)
    run.keys_file.unlink()
    yield from _check_keys(run, "", bob)
    if not run.has_ended() and "keys.json is missing" not in run.output:
        yield "the deleted key file was not reported"


def _check_keys(run: GatewayRun, *wrong_keys: str) -> Iterator[str]:
    for key in wrong_keys:
        status = run.request(key)
        if status != (None if run.has_ended() else 401):
            yield f"a request with the key {key!r} got the status {status}"


def find_problems(run: GatewayRun, fault: str, operation: Operation, place: Place) -> Iterator[str]:
    """Run a gateway with a fault, and yield what is wrong."""
    yield from run_life(run, fault, place)
    is_at_start = run.operations and run.has_ended()
    code = run.stop()
    if place not in map(PlaceFinder(), run.operations):
        is_repeated = operation.kind in READS and place[2] > 0
        if not is_repeated:
            yield "the gateway did not reach the operation"
    elif fault == KILL:
        if code != -9:
            yield f"exit code {code}"
    elif is_at_start:
        if code == 0 or not has_whole_message(run.output):
            yield f"the gateway ended with {code}: {run.output}"
    elif code != STOPPED or "Traceback" in run.output:
        yield f"exit code {code}: {run.output}"
    elif operation.path == str(run.keys_file) and f"{run.keys_file} cannot be read" not in (
        run.output.replace("The API keys in ", "")
    ):
        yield f"the fault in the key file was not reported: {run.output}"


def has_whole_message(output: str) -> bool:
    """Return whether `output` contains what happened, why and what next, and no traceback."""
    is_whole = all(each in output for each in ("Error: ", "Why: ", "Next: "))
    return is_whole and "Traceback" not in output


@pytest.mark.timeout(1800)
def test_gateway_survives_each_fault(
    tmp_path: Path, is_full: bool, note_faults: NoteFaults
) -> None:
    rehearsal = GatewayRun(tmp_path / "0")
    problems = [*run_life(rehearsal)]
    assert (problems, rehearsal.stop(), "Traceback" in rehearsal.output) == ([], STOPPED, False)
    operations = rehearsal.operations
    known = rehearsal.files
    faults = find_faults(operations, is_full=is_full)
    for fault, operation, place in faults:
        run = GatewayRun(tmp_path / "0", replaces=True)
        found = [*find_problems(run, fault, operation, place)]
        left = run.files - known
        if left and fault != KILL and operation.kind not in CLEANUPS:
            found.append(f"{left} is left")
        problems += [f"{fault} at {operation}: {each}" for each in found]
        if is_full or fault == KILL:
            add_key(run.keys_file, "alice", now_s=1.0)
            run.start()
            if run.request("") != 401 or run.stop() != STOPPED:
                problems.append(f"{fault} at {operation}: the next start failed: {run.output}")
    note_faults("gateway", (fault for fault, _, _ in faults))
    assert not problems, "\n".join(problems)


def damage(file: Path, how: str) -> None:
    """Delete `file`, or replace it with half of its content, no text, or a folder."""
    data = file.read_bytes()
    file.unlink()
    match how:
        case "truncated":
            file.write_bytes(data[: len(data) // 2])
        case "empty":
            file.touch()
        case "binary":
            file.write_bytes(b"\xff\x00" * 100)
        case "folder":
            file.mkdir()


@pytest.mark.parametrize("how", ["missing", "truncated", "empty", "binary", "folder"])
@pytest.mark.parametrize(
    "name",
    ["server/gateway.json", "home/keys.json", "tokenizer/tokenizer.json", "tls.crt", "tls.key"],
)
def test_gateway_survives_a_damaged_file(
    tmp_path: Path, name: str, how: str, note_faults: NoteFaults
) -> None:
    tls: dict[str, str] = {}
    if name.startswith("tls"):
        if shutil.which("openssl") is None:
            pytest.skip("no openssl (apt-get install openssl)")
        certificate, key = certify(tmp_path, "tls")
        tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    # After a restart of the gateway, the marker is there.
    run = GatewayRun(tmp_path / "gateway", **tls)
    (run.config_file.parent / KEYS_MARKER).touch()
    if name.startswith("tokenizer"):
        # Each forked gateway would import Transformers.
        TransformersTokenizer(run.tokenizer)
    damage(tmp_path / name if tls else run.folder / name, how)
    run.start()
    try:
        run.wait_until_loaded()
        if name in ("server/gateway.json", "tls.crt", "tls.key"):
            assert run.has_ended()
            assert has_whole_message(run.output), run.output
        else:
            assert [run.request(each) for each in ("", "no-key")] == [401, 401]
            expected = 401 if name == "home/keys.json" else 400
            assert run.request(run.key) == expected
            assert run.folder.joinpath(name).parent.name in run.output
            assert "Traceback" not in run.output
    finally:
        run.stop()
    note_faults("damaged gateway file", [how])
