from __future__ import annotations

import json
import socket

import pytest

from tests.cli.running import Tllm
from trtllm_serve_cli.paths import find_home


def test_options_become_the_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--processes", "3", "--auth", "on", "--log-format", "json")
    origins = ("--cors-origin", "https://a.example", "--cors-origin", "https://b.example")
    servers = ("-u", "gpu1:8001", "-u", "gpu2:8001", "-m", "llama=ensemble")
    tllm = Tllm(monkeypatch, capsys)
    code, out, err = tllm("gateway", "--dry-run", *servers, *options, *origins)
    config = json.loads(out)
    assert (code, err) == (0, "")
    assert [each["endpoint"]["grpc"] for each in config["models"]] == ["gpu1:8001", "gpu2:8001"]
    assert {each["name"] for each in config["models"]} == {"llama"}
    assert (config["num_processes"], config["key_policy"]) == (3, "on")
    assert config["keys_file"] == str(find_home().keys)
    assert config["cors_origins"] == ["https://a.example", "https://b.example"]
    assert config["log_format"] == "json"


def test_used_port_error_names_the_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        tllm = Tllm(monkeypatch, capsys)
        code, _, err = tllm("gateway", "-u", "gpu1:8001", "--port", str(port))
    assert (code, "choose another port with --port N" in err) == (3, True)
