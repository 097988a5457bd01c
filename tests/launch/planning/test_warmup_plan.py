"""The requests of a warm-up."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE
from tests.samples.launch_plans import fake_plan
from tests.samples.repositories import add_model
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.planning.warmup_plan import (
    WarmupModel,
    WarmupRequest,
    describe_models,
    plan_warmup,
)
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.model.store import read_manifest
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

MODEL = WarmupModel("m", "m_ensemble", max_seq_len=1000, has_guides=True)


def names_of(requests: tuple[WarmupRequest, ...]) -> list[str]:
    return [each.name for each in requests]


def test_requests_have_the_shapes_of_the_first_requests() -> None:
    requests = plan_warmup([MODEL], GatewayConfig(()))
    schema = requests[-1].json_schema
    assert schema
    assert requests == (
        WarmupRequest("short prompt", "m_ensemble", 8),
        WarmupRequest("long prompt", "m_ensemble", 250),
        WarmupRequest("several streams", "m_ensemble", 32, num_streams=4),
        WarmupRequest("chat", "m", 8, is_chat=True),
        WarmupRequest("JSON schema", "m", 8, is_chat=True, json_schema=schema),
    )


def test_long_prompt_is_limited() -> None:
    (_, request, *_) = plan_warmup([dataclasses.replace(MODEL, max_seq_len=131072)], None)
    assert (request.name, request.num_words) == ("long prompt", 512)


def test_model_of_unknown_length_has_no_long_prompt() -> None:
    requests = plan_warmup([WarmupModel("m", "m")], None)
    assert names_of(requests) == ["short prompt", "several streams"]


@pytest.mark.parametrize("gateway", [None, GatewayConfig((), tls_certificate="cert.pem")])
def test_schema_is_sent_to_triton_without_a_reachable_gateway(
    gateway: GatewayConfig | None,
) -> None:
    *others, schema = plan_warmup([MODEL], gateway)
    assert not any(each.is_chat for each in others)
    assert (schema.name, schema.model, schema.is_chat) == ("JSON schema", "m_ensemble", False)


def test_chat_reaches_every_process_of_the_gateway() -> None:
    requests = plan_warmup([MODEL], GatewayConfig((), num_processes=3))
    assert [each.num_streams for each in requests if each.name == "chat"] == [12]


def test_description_names_number_and_size() -> None:
    request = WarmupRequest("several streams", "m", 32, num_streams=4)
    assert request.describe() == (
        "several streams: 4 text requests to m, 32 words per prompt, at most 16 tokens per response"
    )


def test_plan_is_read_back(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), warmup=plan_warmup([MODEL], None))
    assert LaunchPlan.from_json(plan.to_json()).warmup == plan.warmup


def test_warm_up_is_planned_on_request(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "engines")
    add_model(home, "m")
    assert plan_for_this_machine(home, [], {}).warmup == ()
    plan = plan_for_this_machine(home, [], {"warmup": True})
    assert "short prompt" in names_of(plan.warmup)
    assert plan.describe().splitlines()[-1].startswith("  JSON schema: ")
    assert plan.gateway is not None
    token = plan.gateway.supervisor_token
    assert (len(token) > 20, token in json.dumps(plan.as_dict(), default=str)) == (True, False)


@pytest.mark.parametrize(
    ("kind", "parameters", "has_guides"),
    [
        ("openvino", {}, True),
        ("sim", {}, False),
        ("pytorch", {}, False),
        ("pytorch", {"guided_decoding_backend": "xgrammar"}, True),
    ],
)
def test_engine_kinds_with_guides(
    tmp_path: Path, kind: str, parameters: dict[str, str], has_guides: bool
) -> None:
    engine = dataclasses.replace(ENGINE, kind=kind, path=tmp_path)
    options = ServingOptions(parameters=parameters)
    write_repository(plan_repository("m", engine, options), tmp_path / "m")
    model = read_manifest(tmp_path / "m")
    (described,) = describe_models({"m": model})
    assert (described.has_guides, described.max_seq_len > 0) == (has_guides, True)
