"""Probes of a started server, with a fake Triton."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.triton.answers import ModelError, Outputs, Request, follow_prompt
from tests.fakes.triton.server import FakeTriton
from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.warmup_plan import WarmupRequest
from trtllm_serve_cli.launch.start_probe import StartProbe


def plan_of(tmp_path: Path, triton: FakeTriton, *warmup: WarmupRequest) -> LaunchPlan:
    return dataclasses.replace(fake_plan(tmp_path), endpoint=triton.endpoint, warmup=warmup)


def test_server_is_warmed_up_once_and_only_with_a_healthy_gateway(tmp_path: Path) -> None:
    with FakeTriton() as triton:
        plan = plan_of(tmp_path, triton, WarmupRequest("short prompt", "m", 7))
        probe = StartProbe(plan, 10.0, is_gateway_healthy=lambda: False)
        probe.run()
        first_token_at = probe.first_token_at
        assert (probe.is_ready.is_set(), probe.warmup_at) == (False, None)
        probe.is_gateway_healthy = lambda: True
        probe.run()
        probe.run()
        assert probe.is_ready.is_set() and probe.first_token_at == first_token_at
        assert sum(len(each["text_input"].split()) == 7 for each in triton.received) == 1


def test_server_that_fails_is_not_ready(tmp_path: Path) -> None:
    with FakeTriton(fails_every=1) as triton:
        probe = StartProbe(plan_of(tmp_path, triton), 10.0)
        probe.run()
    assert (probe.is_ready.is_set(), probe.first_token_at) == (False, None)


def test_server_that_the_warmup_breaks_is_not_ready(tmp_path: Path) -> None:
    def break_at_the_warmup(request: Request) -> Iterator[Outputs]:
        if any(len(each["text_input"].split()) == 7 for each in triton.received):
            raise ModelError("the engine died")
        yield from follow_prompt(request)

    with FakeTriton(answer=break_at_the_warmup) as triton:
        probe = StartProbe(plan_of(tmp_path, triton, WarmupRequest("short prompt", "m", 7)), 10.0)
        probe.run()
        probe.run()
    assert (probe.is_ready.is_set(), probe.first_token_at is None) == (False, False)
    (problem,) = probe.problems
    assert problem == "warm-up request 'short prompt': The request to m failed (the engine died)"
