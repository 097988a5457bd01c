from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Tllm
from tests.fakes.triton.server import FakeTriton
from tests.ports import free_ports
from tests.samples.certificates import certify
from tests.samples.lora_adapters import write_converted
from trtllm_serve_cli.paths import find_home


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


def plan(tllm: Tllm, *words: str) -> Any:
    """Return the planned configuration."""
    code, out, err = tllm("gateway", "--dry-run", *words)
    assert (code, err) == (0, "")
    return json.loads(out)


def addresses(config: Any) -> list[tuple[str, str]]:
    return [(each["endpoint"]["grpc"], each["endpoint"]["http"]) for each in config["models"]]


def test_options_become_the_configuration(tllm: Tllm) -> None:
    options = ("--processes", "3", "--auth", "on", "--log-format", "json", "--trace-rate", "9")
    origins = ("--cors-origin", "https://a.example", "--cors-origin", "https://b.example")
    servers = ("-u", "gpu1:8001", "-u", "gpu2:8001", "-m", "llama=ensemble")
    config = plan(tllm, *servers, *options, *origins)
    assert addresses(config) == [("gpu1:8001", ""), ("gpu2:8001", "")]
    assert {each["name"] for each in config["models"]} == {"llama"}
    assert (config["num_processes"], config["key_policy"]) == (3, "on")
    assert config["keys_file"] == str(find_home().keys)
    assert config["cors_origins"] == ["https://a.example", "https://b.example"]
    assert (config["log_format"], config["trace_rate"]) == ("json", 9)
    limits = ("--openai-max-body-mib", "64", "--openai-max-waiting", "0")
    config = plan(tllm, *limits, "--openai-receive-timeout", "5")
    assert (config["max_body_bytes"], config["max_waiting"]) == (64 << 20, 0)
    assert (config["max_in_flight"], config["receive_timeout_s"]) == (4096, 5.0)


def test_adapters_are_folders_on_this_machine(tllm: Tllm, tmp_path: Path) -> None:
    poet = write_converted(tmp_path / "poet")
    words = ("-m", "llama=ensemble", "--lora", f"poet={poet}", "--runtime-lora-dir", str(tmp_path))
    config = plan(tllm, *words)
    assert config["adapters"] == [{"name": "poet", "folder": str(poet), "model": "llama"}]
    assert (config["runtime_lora_dir"], config["num_processes"]) == (str(tmp_path), 1)
    code, _, err = tllm("gateway", "--lora", f"poet={tmp_path}")
    assert (code, "does not contain a LoRA adapter" in err) == (3, True)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (("-m", "a=x", "-m", "a=y"), "The name 'a' cannot stand for several models."),
        (("-m", "=x"), "'=x' does not have the form NAME[=MODEL]."),
        (("-m", "a="), "'a=' does not have the form NAME[=MODEL]."),
    ],
)
def test_invalid_models_are_rejected(tllm: Tllm, models: tuple[str, ...], words: str) -> None:
    code, _, err = tllm("gateway", *models, "--dry-run")
    assert (code, words in err) == (3, True)


def test_repeated_model_is_served_once(tllm: Tllm) -> None:
    assert len(plan(tllm, "-m", "a", "-m", "a")["models"]) == 1


def test_http_addresses_belong_to_the_grpc_addresses(tllm: Tllm) -> None:
    urls = ("-u", "gpu1:8001", "-u", "http://gpu1:8000", "-u", "gpu2:8001")
    assert addresses(plan(tllm, *urls)) == [("gpu1:8001", "gpu1:8000"), ("gpu2:8001", "")]
    pasted = ("-u", "gpu1:8001", "-u", "http://gpu1:8000/v2/models/ensemble/generate")
    assert addresses(plan(tllm, *pasted)) == [("gpu1:8001", "gpu1:8000")]


def test_tls_applies_to_grpcs_addresses(tllm: Tllm, tmp_path: Path) -> None:
    ca, key = certify(tmp_path, "ca")
    files = ("--openai-cert", str(ca), "--openai-key", str(key), "--tls-ca", str(ca))
    config = plan(tllm, "-u", "grpcs://gpu1:8001", "-u", "gpu2:8001", *files)
    tls = [each["endpoint"]["tls"] and each["endpoint"]["tls"]["root_certificates"]
           for each in config["models"]]  # fmt: skip
    assert (addresses(config)[0], tls) == (("gpu1:8001", ""), [str(ca), None])
    assert (config["tls_certificate"], config["tls_key"]) == (str(ca), str(key))


def test_tls_files_that_cannot_be_used_are_rejected(tllm: Tllm, tmp_path: Path) -> None:
    ca, key = certify(tmp_path, "ca")
    for words, message in (
        (("--openai-cert", str(ca)), "requires a certificate and a private key"),
        (("--openai-cert", str(ca), "--openai-key", str(ca)), "cannot be used for TLS"),
        (("-u", "grpcs://gpu1:8001", "--tls-ca", str(key)), "cannot be used as a CA certificate"),
        (("-u", "gpu1:8001", "--tls-ca", str(ca)), "--tls-ca requires a server address"),
    ):
        code, _, err = tllm("gateway", "--dry-run", *words)
        assert (code, message in err) == (3, True), err


def test_server_that_requires_tls_is_reported(tllm: Tllm, tmp_path: Path) -> None:
    with FakeTriton(certificate=certify(tmp_path, "server")) as triton:
        code, _, err = tllm("gateway", f"--port={free_ports(1)[0]}", "-u", triton.endpoint.grpc)
    assert (code, "requires TLS" in err, "-u grpcs://HOST:PORT" in err) == (3, True, True)


def test_default_addresses_are_those_of_triton(tllm: Tllm) -> None:
    assert addresses(plan(tllm)) == [("127.0.0.1:8001", "127.0.0.1:8000")]


def test_http_address_without_a_grpc_address_is_rejected(tllm: Tllm) -> None:
    code, _, err = tllm("gateway", "--dry-run", "-u", "http://gpu1:8000")
    assert (code, "1 HTTP and 0 gRPC addresses" in err, "-u gpu1:8001" in err) == (3, True, True)


def test_port_of_the_wrong_interface_is_rejected(tllm: Tllm) -> None:
    port = f"--port={free_ports(1)[0]}"
    with FakeTriton() as triton:
        grpc, http = triton.endpoint.grpc, triton.endpoint.http
        code, _, err = tllm("gateway", port, "-u", http)
        assert (code, f"{http} serves HTTP, not gRPC." in err) == (3, True)
        code, _, err = tllm("gateway", port, "-u", grpc, "-u", f"http://{grpc}")
        assert (code, f"{grpc} serves gRPC, not HTTP." in err) == (3, True)


def test_used_port_error_names_the_option(tllm: Tllm) -> None:
    with FakeTriton() as triton:
        port = triton.endpoint.http.rpartition(":")[2]
        code, _, err = tllm("gateway", f"--port={port}", "-u", triton.endpoint.grpc)
    assert (code, "port with --port N" in " ".join(err.split())) == (3, True)
