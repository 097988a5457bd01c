"""The supervisor's record of a server is published by one of its models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes import triton_utils
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.requests.request_record import RequestLedger
from trtllm_serve_cli.runtime.telemetry.families import SERVER_FAMILIES
from trtllm_serve_cli.runtime.telemetry.server_metrics import STATE_FOLDER, STATE_PUBLISHER


@contextmanager
def published(
    model: str, environ: dict[str, str], instance: int = 0
) -> Iterator[dict[str, triton_utils.Metric]]:
    """Run the ledger of a model, and provide its metrics of the server."""
    triton_utils.METRICS.clear()
    ledger = RequestLedger(triton_utils, model, "1", instance=instance, environ=environ)
    yield {
        each.name: each
        for each in triton_utils.METRICS
        if each.name in {family.name for family in SERVER_FAMILIES}
    }
    ledger.close()


def record(folder: Path, phase: str, hangs: int, restarts: int) -> None:
    state = {"phase": phase, "why": [], "hangs": hangs, "restarts": restarts}
    (folder / "state.json").write_text(json.dumps(state).ljust(4096))


def test_metrics_follow_the_supervisors_record(tmp_path: Path) -> None:
    environ = {STATE_FOLDER: str(tmp_path), STATE_PUBLISHER: "demo"}
    with published("demo", environ) as metrics:
        for state, values in (
            (("ready", 0, 2), [1, 0, 2]),
            (("unresponsive", 0, 2), [0, 0, 2]),
            (("ready", 3, 4), [1, 3, 4]),
        ):
            record(tmp_path, *state)
            wait_until(lambda values=values: [each.value for each in metrics.values()] == values)
        assert [each.labels for each in metrics.values()] == [{}] * 3


@pytest.mark.parametrize(
    ("model", "instance", "publisher"),
    [("ensemble", 0, "demo"), ("demo", 1, "demo"), ("demo", 0, None)],
    ids=["another model", "another instance", "no supervisor"],
)
def test_other_processes_do_not_publish_the_record(
    tmp_path: Path, model: str, instance: int, publisher: str | None
) -> None:
    environ = {STATE_FOLDER: str(tmp_path), STATE_PUBLISHER: publisher} if publisher else {}
    with published(model, environ, instance) as metrics:
        assert metrics == {}
