"""The commands that `tllm start` suggests for a server."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.cli.server.start import suggest_prompts
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.server_state import ServerState
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.store import MANIFEST


@pytest.fixture
def served(home: Home) -> RunningServer:
    """Return a server with a gateway on port 9000, whose processes do not run."""
    plan = fake_plan(home.servers)
    gateway = GatewayConfig((), port=9000)
    plan = dataclasses.replace(plan, repository=home.models / "m", gateway=gateway)
    return RunningServer(plan.directory, plan, ServerState("ready", 0, 0.0))


def with_gateway(server: RunningServer, **fields: Any) -> RunningServer:
    """Return a copy of the server whose gateway has other settings."""
    assert server.plan.gateway is not None
    gateway = dataclasses.replace(server.plan.gateway, **fields)
    return dataclasses.replace(server, plan=dataclasses.replace(server.plan, gateway=gateway))


def test_commands_to_try_include_the_openai_api(served: RunningServer) -> None:
    assert suggest_prompts(served, [served]) == [
        'tllm infer "What is ML?"',
        'tllm infer -i openai "What is ML?"',
    ]
    other = with_gateway(served, port=9100)
    assert suggest_prompts(served, [served, other])[1] == (
        'tllm infer -i openai -u http://127.0.0.1:9000 "What is ML?"'
    )


def test_commands_to_try_name_the_model_and_the_server(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = dataclasses.replace(served.plan, models=("m", "n"))
    several = dataclasses.replace(served, plan=models)
    assert suggest_prompts(several, [several])[1] == 'tllm infer -i openai -m m "What is ML?"'
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    assert "-u http://127.0.0.1:9000" in suggest_prompts(served, [served])[1]


def test_commands_that_would_fail_are_not_suggested(served: RunningServer, home: Home) -> None:
    encrypted = with_gateway(served, tls_certificate="server.crt")
    assert len(suggest_prompts(encrypted, [encrypted])) == 1
    manifest = home.models / "m" / MANIFEST
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "layout": "embedding"}))
    assert len(suggest_prompts(served, [served])) == 1
