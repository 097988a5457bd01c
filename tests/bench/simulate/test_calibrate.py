"""Tests that calibration recovers known timings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtllm_serve_cli.bench.model.arrivals import AtRate, plan_due_times
from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.bench.simulate.calibrate import Calibration, MeasuredRun, calibrate, runs_of
from trtllm_serve_cli.bench.simulate.virtual_clock import SendSchedule, run_simulated
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits, Simulation, StepTiming

# Roughly a 7B model on a large GPU.
KNOWN = StepTiming(
    step_s=0.008, prompt_token_s=3e-5, prompt_pair_s=4e-9, sequence_s=6e-5, kv_token_s=1e-7,
    request_s=0.002,
)  # fmt: skip


def measure(
    name: str = "run", concurrency: int | None = 8, *, number: int = 150, stdev: int = 250,
    timing: StepTiming = KNOWN, stream: bool = True, noise_s: float = 0.0,
) -> MeasuredRun:  # fmt: skip
    """Return a run on the virtual clock; `noise_s` is the mean network delay of a token."""
    rng = np.random.default_rng(3)
    requests = TokenNormDist(600, stdev, 60, 20).draw(number, 1000, rng)
    due_s = None if concurrency else plan_due_times(AtRate(20), number, rng).tolist()
    records = run_simulated(
        requests, Simulation(timing), SendSchedule(due_s, concurrency), stream=stream
    )
    if noise_s:
        records = tuple(_disturb(each, rng.exponential(noise_s, 400)) for each in records)
    return MeasuredRun(name, records, concurrency)


def _disturb(record: RequestRecord, late_s: Any) -> RequestRecord:
    times = np.maximum.accumulate(np.array(record.chunk_s) + late_s[: len(record.chunk_s)])
    return dataclasses.replace(record, chunk_s=tuple(times.tolist()), end_s=float(times[-1]))


def parts(calibration: Calibration) -> StepTiming:
    return calibration.simulation.timing


def test_recovers_a_known_timing_from_two_closed_loops() -> None:
    found = calibrate([measure("1", 1, number=40), measure("32", 32)])
    for name in ("step_s", "sequence_s", "kv_token_s", "prompt_token_s", "request_s"):
        assert getattr(parts(found), name) == pytest.approx(getattr(KNOWN, name), rel=0.02), name
    assert parts(found).prompt_pair_s == pytest.approx(KNOWN.prompt_pair_s, rel=0.1)


def test_recovers_a_known_timing_from_an_open_loop() -> None:
    found = calibrate([measure("open", None, number=300)])
    assert parts(found).step_s == pytest.approx(KNOWN.step_s, rel=0.03)
    assert parts(found).prompt_token_s == pytest.approx(KNOWN.prompt_token_s, rel=0.05)


def test_tolerates_network_jitter() -> None:
    runs = [measure("1", 1, number=40, noise_s=3e-4), measure("32", 32, noise_s=3e-4)]
    found = calibrate(runs)
    assert parts(found).step_s == pytest.approx(KNOWN.step_s, rel=0.05)
    assert parts(found).prompt_token_s == pytest.approx(KNOWN.prompt_token_s, rel=0.05)
    medians = [each for each in found.comparisons if "p50" in each.figure]
    assert max(abs(each.deviation) for each in medians) < 0.05


def test_ignores_tokens_received_in_one_read() -> None:
    run = measure("32", 32)
    together = tuple(
        dataclasses.replace(each, chunk_s=(each.chunk_s[1], *each.chunk_s[1:]))
        for each in run.records[::10]
    )
    apart = tuple(each for index, each in enumerate(run.records) if index % 10)
    merged = dataclasses.replace(run, records=together + apart)
    found = calibrate([measure("1", 1, number=40), merged])
    assert parts(found).step_s == pytest.approx(KNOWN.step_s, rel=0.05)


def test_compares_the_simulation_with_the_runs() -> None:
    found = calibrate([measure("1", 1, number=40), measure("32", 32)])
    assert {each.run for each in found.comparisons} == {"1", "32"}
    assert max(abs(each.deviation) for each in found.comparisons) < 0.01
    assert found.knows_request_s
    assert found.median_error < 0.01


def test_request_s_is_unknown_if_no_request_ran_alone() -> None:
    found = calibrate([measure("4", 4), measure("32", 32)])
    assert (found.knows_request_s, parts(found).request_s) == (False, 0.0)


def test_keeps_the_scheduler_limits() -> None:
    limits = SchedulerLimits(max_batch_size=64)
    found = calibrate([measure("1", 1, number=40), measure("32", 32)], limits)
    assert found.simulation.limits == limits
    assert found.simulation.origin == "calibrated by 1, 32"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (measure(stream=False), "some responses contain several tokens"),
        (measure(number=1), "calibration requires at least 100 gaps between tokens, but "),
        (measure(stdev=0), "most prompts have a similar length (median: 600)"),
        (measure(concurrency=1), "most steps have a similar number of sequences (median: 1)"),
        (MeasuredRun("none", (), 1), "calibration requires token arrival times"),
    ],
    ids=["not streamed", "too short", "one length", "one in flight", "nothing"],
)
def test_rejects_an_insufficient_run_and_suggests_a_command(run: MeasuredRun, why: str) -> None:
    with pytest.raises(BadInput) as refused:
        calibrate([run])
    assert refused.value.why.startswith(why)
    assert "tllm bench " in refused.value.next_step


def stored(
    records: tuple[RequestRecord, ...], load: dict[str, Any] | None = None, num_targets: int = 1
) -> StoredResult:
    load = load or {"kind": "concurrency", "concurrency": 8}
    return StoredResult(
        Path("a"), {"settings": {"load": load}, "targets": [{}] * num_targets}, records
    )


def test_result_has_one_run_per_repeat() -> None:
    run = measure("a", 8, number=3)
    assert runs_of(stored(run.records)) == (run,)
    again = tuple(dataclasses.replace(each, run=1) for each in run.records)
    both = runs_of(stored(run.records + again))
    assert both == (MeasuredRun("a 1", run.records, 8), MeasuredRun("a 2", again, 8))


def test_open_loop_has_no_concurrency_even_with_a_cap() -> None:
    (run,) = runs_of(stored((), {"kind": "rate", "concurrency": 4}))
    assert run.concurrency is None


def test_ramp_requests_are_included() -> None:
    ramp = tuple(dataclasses.replace(each, is_ramp=True) for each in measure(number=3).records)
    assert runs_of(stored(ramp))[0].records == ramp


def test_rejects_a_result_of_several_targets() -> None:
    with pytest.raises(BadInput, match="result a contains measurements from several targets"):
        runs_of(stored((), num_targets=2))
