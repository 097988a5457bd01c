"""Requests of a warm-up to fake servers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.triton.server import FakeTriton
from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.warmup_plan import WarmupRequest
from trtllm_serve_cli.launch.warmup import warm_up


def plan_of(tmp_path: Path, triton: FakeTriton, *requests: WarmupRequest) -> LaunchPlan:
    return dataclasses.replace(fake_plan(tmp_path), endpoint=triton.endpoint, warmup=requests)


def test_text_requests_are_sent_to_triton(tmp_path: Path) -> None:
    with FakeTriton() as triton:
        several = WarmupRequest("several streams", "m", 12, max_tokens=5, num_streams=3)
        schema = WarmupRequest("JSON schema", "m", 2, json_schema="{}")
        assert list(warm_up(plan_of(tmp_path, triton, several, schema), 10.0)) == []
    *sent, guided = triton.received
    assert [(len(each["text_input"].split()), each["max_tokens"]) for each in sent] == [(12, 5)] * 3
    assert guided["guided_decoding_guide_type"] == "json_schema"
    assert guided["guided_decoding_guide"] == "{}"


def test_chat_completions_are_sent_to_the_gateway_with_the_supervisors_key(tmp_path: Path) -> None:
    chat = WarmupRequest("chat", "demo", 4, is_chat=True, json_schema='{"type": "object"}')
    with FakeTriton() as triton, FakeOpenAI(api_key="secret") as gateway:
        plan = plan_of(tmp_path, triton, chat)
        port = int(gateway.url.split(":")[-1].split("/")[0])
        config = GatewayConfig((), port=port, supervisor_token="secret")
        plan = dataclasses.replace(plan, gateway=config, replicas=(triton.endpoint,))
        assert list(warm_up(plan, 10.0)) == []
    (body,) = gateway.bodies
    assert (body["model"], len(body["messages"][0]["content"].split())) == ("demo", 4)
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert triton.requests == []


def test_every_rank_receives_the_text_requests(tmp_path: Path) -> None:
    with FakeTriton() as triton, FakeTriton() as other:
        plan = plan_of(tmp_path, triton, WarmupRequest("short prompt", "m", 2))
        assert list(warm_up(dataclasses.replace(plan, replicas=(other.endpoint,)), 10.0)) == []
    assert (len(triton.requests), len(other.requests)) == (1, 1)


def test_failed_request_is_described_and_the_others_are_sent(tmp_path: Path) -> None:
    with FakeTriton(fails_every=2) as triton:
        requests = (WarmupRequest(name, "m", 2) for name in ("first", "second", "third"))
        (problem,) = warm_up(plan_of(tmp_path, triton, *requests), 10.0)
    assert problem.startswith("warm-up request 'second': ")
    assert "out of cheese" in problem
    assert len(triton.requests) == 3
