"""Requests over gRPC with TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.running import Tllm
from tests.fakes.triton.server import FakeTriton
from tests.samples.certificates import certify
from trtllm_serve_cli.cli.main import app
from trtllm_serve_cli.errors import NoServer, TllmError

SMALL = ("--num-requests", "4", "--input-mean", "8", "--output-mean", "4")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return certify(tmp_path, "server", "-addext", "subjectAltName=IP:127.0.0.1")


@pytest.fixture
def server(certificate: tuple[Path, Path]) -> Iterator[FakeTriton]:
    with FakeTriton(certificate=certificate) as fake:
        yield fake


def bench(server: FakeTriton, *options: str) -> Any:
    words = ("token-norm-dist", "-u", f"grpcs://{server.endpoint.grpc}", *SMALL, *options)
    return CliRunner().invoke(app, ("bench", *words))


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_bench_sends_requests_over_tls(
    server: FakeTriton, certificate: tuple[Path, Path], is_decoupled: bool
) -> None:
    server.is_decoupled = is_decoupled
    result = bench(server, "--tls-ca", str(certificate[0]), "--warmup", "0")
    assert (result.exit_code, len(server.requests)) == (0, 4), result.stderr
    assert "failed" not in result.stderr


def test_bench_rejects_a_certificate_that_is_not_trusted(
    server: FakeTriton, tmp_path: Path
) -> None:
    other, _ = certify(tmp_path, "other")
    result = bench(server, "--tls-ca", str(other))
    assert isinstance(result.exception, NoServer)
    assert server.requests == []


def test_bench_finds_the_tokenizer_over_tls(
    server: FakeTriton, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, file = tmp_path / "empty", tmp_path / "data.jsonl"
    folder.mkdir()
    file.write_text('{"prompt": "hello", "output_length": 3}')
    server.parameters = {"tokenizer_dir": str(folder)}
    words = ("dataset", "--dataset", str(file), "-u", f"grpcs://{server.endpoint.grpc}")
    result = CliRunner().invoke(app, ("bench", *words, "--tls-ca", str(certificate[0])))
    assert isinstance(result.exception, TllmError)
    assert str(folder) in result.exception.what


def test_infer_sends_a_prompt_over_tls(
    server: FakeTriton,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tllm = Tllm(monkeypatch, capsys)
    url = ("-u", f"grpcs://{server.endpoint.grpc}", "-m", "ensemble")
    code, out, err = tllm("infer", "go", *url, "--tls-ca", str(certificate[0]))
    assert (code, bool(out)) == (0, True), err
    code, _, err = tllm("infer", "go", "-i", "openai", "--tls-ca", str(certificate[0]))
    assert (code, "SSL_CERT_FILE" in err) == (2, True)
