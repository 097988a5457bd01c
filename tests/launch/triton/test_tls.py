"""TLS files, created with the system's openssl."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.samples.certificates import certify
from trtllm_serve_cli.client.endpoint import Tls
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.triton.tls import plan_tls

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl (apt-get install openssl)"
)


def test_server_without_a_certificate_has_no_tls() -> None:
    assert plan_tls(None, None, None) is None


def test_certificate_is_trusted_for_any_name(tmp_path: Path) -> None:
    certificate, key = certify(tmp_path, "llm.example")
    assert plan_tls(certificate, key, None) == Tls(str(certificate), "llm.example")


def test_server_name_is_the_first_alternative_name(tmp_path: Path) -> None:
    names = "subjectAltName=IP:127.0.0.1,DNS:*.example,DNS:other"
    certificate, key = certify(tmp_path, "common", "-addext", names)
    assert plan_tls(certificate, key, None) == Tls(str(certificate), "server.example")


def test_client_certificate_with_a_root(tmp_path: Path) -> None:
    certificate, key = certify(tmp_path, "llm.example")
    assert plan_tls(certificate, key, certificate) == Tls(
        str(certificate), "llm.example", str(certificate), str(key)
    )


@pytest.mark.parametrize("half", [(True, False), (False, True)])
def test_certificate_without_key_is_rejected(tmp_path: Path, half: tuple[bool, bool]) -> None:
    files = certify(tmp_path, "a")
    chosen = [file if is_set else None for file, is_set in zip(files, half, strict=True)]
    with pytest.raises(BadInput, match="TLS for gRPC requires a certificate and a private key"):
        plan_tls(*chosen, None)


def test_key_of_another_certificate_is_rejected(tmp_path: Path) -> None:
    certificate, _ = certify(tmp_path, "a")
    _, key = certify(tmp_path, "b")
    with pytest.raises(BadInput, match="cannot be used for TLS") as raised:
        plan_tls(certificate, key, None)
    assert "--grpc-server-cert" in raised.value.next_step


def test_invalid_certificate_is_rejected(tmp_path: Path) -> None:
    certificate, key = certify(tmp_path, "a")
    with pytest.raises(BadInput, match="cannot be used for TLS"):
        plan_tls(key, key, None)
    with pytest.raises(BadInput, match="cannot be used as a CA certificate"):
        plan_tls(certificate, key, key)
    with pytest.raises(BadInput, match="cannot be used for TLS"):
        plan_tls(tmp_path / "gone", key, None)
