"""The OpenAI-compatible server that commands use without a URL."""

from __future__ import annotations

import dataclasses

import pytest

from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.cli.shared.openai_options import find_openai_endpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.server_state import PLAN_FILE, describe_supervisor, write_state
from trtllm_serve_cli.paths import Home


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def _record_servers(home: Home, *ports: int) -> None:
    for port in ports:
        plan = dataclasses.replace(fake_plan(home.servers), gateway=GatewayConfig((), port=port))
        plan.directory.mkdir(parents=True)
        (plan.directory / PLAN_FILE).write_text(plan.to_json())
        write_state(plan.directory, describe_supervisor("ready"))


def test_only_running_gateway_is_the_default(home: Home) -> None:
    _record_servers(home, 9000)
    assert str(find_openai_endpoint(None, None).url) == "http://127.0.0.1:9000/v1"


def test_without_a_gateway_a_server_can_be_started(home: Home) -> None:
    with pytest.raises(BadInput, match="requires a server URL") as refused:
        find_openai_endpoint(None, None)
    assert refused.value.next_step.startswith("run `tllm start`, or ")


def test_several_gateways_require_a_url(home: Home) -> None:
    _record_servers(home, 9000, 9001)
    with pytest.raises(BadInput, match="requires a server URL") as refused:
        find_openai_endpoint(None, None)
    assert "several servers with an OpenAI-compatible API are running" in refused.value.why
    assert refused.value.next_step == (
        "pass the URL of one of these servers: -u http://127.0.0.1:9000 or -u http://127.0.0.1:9001"
    )
