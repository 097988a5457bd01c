"""Models that reject new requests while requests in flight finish."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_serve_cli.launch.triton.drain import drain_environ, draining, format_in_flight
from trtllm_serve_cli.runtime.engine import InvalidRequest
from trtllm_serve_cli.runtime.triton.drain_check import reject_if_draining


def test_format_in_flight() -> None:
    assert format_in_flight({"a": 5, "b": 1}) == "5 in a, 1 in b"
    assert format_in_flight(None) == "an unknown number (the server does not respond)"


def test_draining_models_reject_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in drain_environ(tmp_path).items():
        monkeypatch.setenv(name, value)
    reject_if_draining("a")
    with draining(tmp_path, ["a"]):
        reject_if_draining("b")
        with pytest.raises(
            InvalidRequest, match="a does not accept new requests, because the model is"
        ):
            reject_if_draining("a")
    reject_if_draining("a")


def test_interrupted_drain_leaves_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(path: Path) -> None:
        path.write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "touch", touch)
    with pytest.raises(KeyboardInterrupt), draining(tmp_path, ["a", "b"]):
        pass
    assert list((tmp_path / "draining").iterdir()) == []


def test_model_outside_of_a_tllm_server_is_never_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TLLM_DRAINING", raising=False)
    reject_if_draining("a")
