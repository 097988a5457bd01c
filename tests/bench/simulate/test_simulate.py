"""Tests of requests on the virtual clock, against times calculated by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.samples import configs
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce
from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.simulate import simulate
from trtllm_serve_cli.bench.simulate.virtual_clock import SendSchedule, run_simulated
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, Turn
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.sim.build_plan import plan_simulation
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits, Simulation, StepTiming
from trtllm_serve_cli.sizing.facts import ModelFacts
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sizing.plan import plan_size
from trtllm_serve_cli.sizing.shape import parse_shape
from trtllm_serve_cli.sizing.size_options import SizeOptions

ONCE = SendSchedule([0.0])
FOUR = SendSchedule([0.0] * 4)


def requests(number: int, num_input: int = 10, num_output: int = 3) -> list[RequestSpec]:
    rng = np.random.default_rng(0)
    return [
        RequestSpec(rng.integers(0, 1000, num_input, np.int32), num_output) for _ in range(number)
    ]


def simulation(timing: StepTiming | None = None, **limits: Any) -> Simulation:
    return Simulation(timing or StepTiming(1.0, prompt_token_s=0.1), SchedulerLimits(**limits))


def times(records: tuple[RequestRecord, ...]) -> list[tuple[float, ...]]:
    return [each.chunk_s for each in records]


def test_single_request_prefills_then_decodes() -> None:
    (record,) = run_simulated(requests(1), simulation(), ONCE)
    assert record.chunk_s == pytest.approx((2.0, 3.0, 4.0))
    assert (record.chunk_tokens, record.end_s) == ((1, 1, 1), 4.0)


def test_open_loop_sends_requests_when_they_are_due() -> None:
    records = run_simulated(requests(2), simulation(), SendSchedule([0.0, 2.5]))
    assert [each.sent_s for each in records] == [0.0, 2.5]
    # The second request waits for the step that ends at 3 s, and lengthens the first one's next.
    assert times(records) == [pytest.approx((2.0, 3.0, 5.0)), pytest.approx((5.0, 6.0, 7.0))]


def test_closed_loop_sends_when_a_request_ends() -> None:
    records = run_simulated(requests(3), simulation(), SendSchedule(concurrency=1))
    assert [each.due_s for each in records] == pytest.approx([0.0, 4.0, 8.0])


def test_concurrency_cap_delays_due_requests() -> None:
    records = run_simulated(requests(2), simulation(), SendSchedule([0.0, 1.0], 1))
    assert [(each.due_s, each.sent_s) for each in records] == [(0.0, 0.0), (1.0, 4.0)]


def test_ramp_opens_the_slots_of_a_closed_loop_one_by_one() -> None:
    schedule = SendSchedule(concurrency=2, ramp_s=10.0)
    records = run_simulated(requests(3), simulation(), schedule)
    assert [each.due_s for each in records] == pytest.approx([0.0, 4.0, 5.0])
    assert [each.is_ramp for each in records] == [True, True, True]


def test_no_request_starts_after_the_duration() -> None:
    records = run_simulated(requests(9), simulation(), SendSchedule(concurrency=1, duration_s=8.5))
    assert [each.due_s for each in records] == pytest.approx([0.0, 4.0, 8.0])


def test_turn_is_due_after_its_think_time_and_includes_the_history() -> None:
    (first,) = requests(1)
    spec = RequestSpec(first.input_ids, 3, turns=(Turn(first.input_ids, 2, think_s=1.5),))
    records = run_simulated([spec, *requests(1)], simulation(), SendSchedule(concurrency=1))
    assert [(each.index, each.turn, each.due_s) for each in records] == [
        (0, 0, 0.0), (0, 1, pytest.approx(5.5)), (1, 0, pytest.approx(records[1].end_s)),
    ]  # fmt: skip
    assert records[1].num_input_tokens == 10 + 3 + 10


def test_request_s_delays_the_first_token() -> None:
    timing = StepTiming(1.0, prompt_token_s=0.1, request_s=0.25)
    records = run_simulated(requests(2), simulation(timing), SendSchedule(concurrency=1))
    assert times(records)[0] == pytest.approx((2.25, 3.25, 4.25))
    assert times(records)[1] == pytest.approx((6.5, 7.5, 8.5))


def test_replicas_share_requests() -> None:
    alone = run_simulated(requests(4), simulation(max_batch_size=1), FOUR)
    shared = run_simulated(requests(4), simulation(max_batch_size=1), FOUR, replicas=4)
    assert max(each.end_s for each in alone) == pytest.approx(16.0)
    assert [each.end_s for each in shared] == pytest.approx([4.0] * 4)


def test_unstreamed_response_has_all_tokens_at_the_end() -> None:
    (record,) = run_simulated(requests(1), simulation(), ONCE, stream=False)
    assert (record.chunk_s, record.chunk_tokens) == ((4.0,), (3,))


def test_request_that_the_engine_rejects_fails() -> None:
    good, bad = run_simulated(
        [*requests(1), *requests(1, num_input=9000)], simulation(), SendSchedule([0.0, 0.0])
    )
    assert good.is_completed
    assert bad.error is not None
    assert "max_num_tokens" in bad.error.message


def test_closed_loop_of_rejected_requests_ends() -> None:
    schedule = SendSchedule(concurrency=2, duration_s=0.12)
    records = run_simulated(requests(99, num_input=9000), simulation(), schedule)
    assert [each.due_s for each in records] == pytest.approx([0.0, 0.0, 0.05, 0.05, 0.1, 0.1])


def test_no_requests_produce_no_records() -> None:
    assert run_simulated([], simulation(), SendSchedule([])) == ()


def _rates(facts: ModelFacts, options: EngineOptions) -> tuple[float, float, float, float]:
    """Return tokens/s of one stream and requests/s of a batch, simulated and as in `tllm plan`."""
    gpu = load_gpu("h200")
    found = plan_simulation(facts, gpu, options)
    size = SizeOptions(tp=options.tp, pp=options.pp, max_batch_size=256)
    sized = plan_size(facts, gpu, options=size)
    speed, demand = sized.plans[0].speed, sized.demand
    assert speed is not None
    (alone,) = run_simulated(requests(1, demand.input_len, demand.output_len), found, ONCE)
    one_stream = (demand.output_len - 1) / (alone.end_s - alone.chunk_s[0])
    batch = min(256, sized.plans[0].memory.num_sequences)
    many = run_simulated(
        requests(4 * batch, demand.input_len, demand.output_len),
        found,
        SendSchedule(concurrency=batch),
    )
    together = len(many) / max(each.end_s for each in many)
    return (
        one_stream, speed.single_stream_tokens_per_s,
        together, speed.saturated_requests_per_s,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"tp": 2}, {"pp": 2}], ids=str)
def test_simulated_ceilings_match_the_sizing_plan(options: dict[str, int]) -> None:
    facts = ModelFacts("hf:a/b", parse_shape(configs.LLAMA_3_1_8B))
    one, plan_one, many, plan_many = _rates(facts, EngineOptions(**options))
    assert one == pytest.approx(plan_one, rel=0.01)
    assert many == pytest.approx(plan_many, rel=0.05)


def test_start_time_is_before_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [datetime(2026, 1, 1, tzinfo=timezone.utc)]

    def run_for_a_minute(*args: Any, **options: Any) -> tuple[RequestRecord, ...]:
        now[0] += timedelta(minutes=1)
        return run_simulated(*args, **options)

    monkeypatch.setattr(simulate, "datetime", SimpleNamespace(now=lambda zone: now[0]))
    monkeypatch.setattr(simulate, "run_simulated", run_for_a_minute)
    settings = BenchmarkSettings(TokenNormDist(), AllAtOnce(), num_requests=1)
    runs = simulate.open_simulated(settings, simulation(), "mine").run_all().runs
    assert [run.started_at for run in runs] == ["2026-01-01T00:00:00+00:00"]
