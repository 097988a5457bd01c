"""A watch of a fake Triton whose engines write no heartbeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.triton.answers import Outputs, Request, Silence, follow_prompt
from tests.fakes.triton.server import FakeTriton
from tests.samples.launch_plans import fake_plan
from tests.waiting import wait_until
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.supervisor.hangs.watch import HangWatch
from trtllm_serve_cli.repository.planning.placed_model import PlacedModel
from trtllm_serve_cli.runtime.watch.liveness import HangLimits

LIMITS = HangLimits(hang_timeout_s=20.0, token_period_s=30.0)


def plan_of_two(folder: Path, triton: FakeTriton) -> LaunchPlan:
    """Return the plan of a server with the models `quick` and `stuck`."""
    names = ("quick", "stuck")
    placed = [
        PlacedModel(name, folder / model / name)
        for model in names
        for name in (model, f"{model}_tensorrt_llm")
    ]
    return dataclasses.replace(
        fake_plan(folder),
        endpoint=triton.endpoint,
        models=names,
        text_models=names,
        loading=tuple(each.name for each in placed),
        combined=tuple(placed),
    )


def page(num_steps: int) -> str:
    """Return metrics in which one engine has completed steps, and the other one never steps."""
    steps = {"quick_tensorrt_llm": num_steps, "stuck_tensorrt_llm": 3}
    return "# TYPE nv_trt_llm_general_metrics gauge\n" + "".join(
        f'nv_trt_llm_general_metrics{{general_type="iteration_counter",model="{model}",'
        f'version="1"}} {number}\n'
        for model, number in steps.items()
    )


def answer(request: Request) -> Iterator[Outputs]:
    if request.model == "stuck":
        raise Silence
    yield from follow_prompt(request)


def test_engine_that_hangs_is_found_while_another_model_steps(tmp_path: Path) -> None:
    now_s, num_steps = 0.0, 1
    with FakeTriton(answer=answer) as triton:
        watch = HangWatch(plan_of_two(tmp_path, triton), LIMITS, clock=lambda: now_s)
        watch.begin()

        def observe() -> list[str]:
            nonlocal now_s, num_steps
            now_s, num_steps = now_s + 5.0, num_steps + 10
            triton.metrics_pages = [page(num_steps)]
            silent = watch.observe(1)
            return [each.sign.what for each in silent if each.sign.part.startswith("token")]

        for _ in range(12):
            observe()
        wait_until(lambda: triton.requests)
        assert {request.model for request in triton.requests} == {"stuck"}
        wait_until(lambda: observe() == ["stuck has not generated a token for 10 s"])
