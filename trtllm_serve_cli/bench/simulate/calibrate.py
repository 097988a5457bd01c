"""Estimate the timing of a simulated engine from measured runs.

Each gap between two consecutive tokens of a request is one engine step. The records of all requests
show what the engine computed in the step:

- the number of sequences that were generating tokens in the middle of the step,
- the lengths of these sequences, and
- the requests that received their first token at the end of the step.

If a request ran alone, its time to first token is the duration of the prompt's step plus the
server's overhead for the request.

Each observation is a linear equation. The non-negative least-squares solution determines the times
in `StepTiming`.

A prompt is assumed to be computed in the step that produces the request's first token. With chunked
prefill, a prompt takes several steps, so the estimated prompt times are less accurate.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.bench.model.arrivals import AllAtOnce
from trtllm_serve_cli.bench.model.metrics import (
    ITL,
    LATENCY,
    LATENCY_FROM_SENT,
    OUTPUT_TOKEN_RATE,
    TTFT,
    TTFT_FROM_SENT,
)
from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.report.result_reader import StoredResult
from trtllm_serve_cli.bench.simulate.virtual_clock import SendSchedule, run_simulated
from trtllm_serve_cli.bench.stats.statistics import Distribution, summarize
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import write_text
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits, Simulation, StepTiming

Floats = NDArray[np.float64]

_COLUMNS = ("step_s", "sequence_s", "kv_token_s", "prompt_token_s", "prompt_pair_s", "request_s")
_MIN_GAPS = 100
# Minimum ratios of the 95th to the 5th percentile, for prompt lengths and for sequences per step.
# With less variation, the fit cannot distinguish the fixed duration of a step from the time per
# token or per sequence.
_MIN_LENGTH_SPREAD, _MIN_IN_FLIGHT_SPREAD = 1.25, 2.0
# Determines the step in which a prompt was processed. A first token may arrive up to this fraction
# of the median token gap after the end of its step. A later first token belongs to the next step.
_SAME_STEP = 0.4
# Maximum absolute relative error of a step, as a multiple of the median absolute relative error.
# Steps with larger errors are outliers.
_OUTLIER = 5.0
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of a benchmark.

    `concurrency` is the number of requests in flight in a closed loop, or `None` in an open loop.
    """

    name: str
    records: tuple[RequestRecord, ...]
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The value of one metric in a measured run and in a simulation of the same requests."""

    run: str
    figure: str
    measured: float
    simulated: float

    @property
    def deviation(self) -> float:
        """The simulated value's relative deviation from the measured value.

        The deviation is 0 if the measured value is 0.
        """
        return self.simulated / self.measured - 1 if self.measured else 0.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of a calibration that observed `num_steps` steps.

    `median_error` is the median of the absolute relative deviations of the estimated step durations
    from the measured step durations. If no request ran alone, `knows_request_s` is false and the
    timing's `request_s` is 0. `comparisons` compares each measured run with a simulation.
    """

    simulation: Simulation
    num_steps: int
    median_error: float
    knows_request_s: bool
    comparisons: tuple[Comparison, ...]


def runs_of(result: StoredResult) -> tuple[MeasuredRun, ...]:
    """Return the runs in a benchmark result.

    The runs include ramp requests, because the engine also processed them. Raise `BadInput` if the
    benchmark had several targets, because each target has a separate engine.
    """
    if len(result.summary["targets"]) > 1:
        raise BadInput(
            f"The result {result.name} contains measurements from several targets.",
            why="each target has its own engine, but a timing file describes only one engine",
            next_step="run `tllm bench token-norm-dist --stream -u HOST:PORT -m NAME --output DIR` "
            "to measure a single target",
        )
    load = result.settings["load"]
    closed = load["concurrency"] if load["kind"] == "concurrency" else None
    by_run: dict[int, list[RequestRecord]] = {}
    for record in result.records:
        by_run.setdefault(record.run, []).append(record)
    if len(by_run) < 2:
        return (MeasuredRun(result.name, result.records, closed),)
    return tuple(
        MeasuredRun(f"{result.name} {run + 1}", tuple(records), closed)
        for run, records in by_run.items()
    )


def calibrate(runs: Sequence[MeasuredRun], limits: SchedulerLimits | None = None) -> Calibration:
    """Estimate an engine's step timing from measured runs and simulate the same runs.

    `limits` are the engine's scheduler limits. Raise `BadInput` if the runs do not determine the
    timing, for example because the responses were not streamed.
    """
    observed = [_observe(run) for run in runs]
    _check_steps_suffice(runs, observed)
    work = np.concatenate([each.work for each in observed])
    duration_s = np.concatenate([each.duration_s for each in observed])
    parts, errors = _fit(work, duration_s)
    timing = StepTiming(**dict(zip(_COLUMNS, parts.tolist(), strict=True)))
    names = ", ".join(run.name for run in runs)
    simulation = Simulation(timing, limits or SchedulerLimits(), f"calibrated by {names}")
    return Calibration(
        simulation,
        num_steps=len(duration_s),
        median_error=float(np.median(np.abs(errors))),
        knows_request_s=bool(work[:, -1].any()),
        comparisons=tuple(each for run in runs for each in _compare(run, simulation)),
    )


def write_timing(simulation: Simulation, path: Path) -> None:
    """Atomically write a timing file, which `--timing` and `--simulate` can read.

    Raise `BadInput` if the file cannot be written.
    """
    try:
        write_text(path, json.dumps(simulation.to_json(), indent=2) + "\n")
    except OSError as error:
        raise BadInput(
            f"The timing file {path} cannot be written.",
            why=error.strerror or str(error),
            next_step="pass -o FILE with a path in an existing, writable folder",
        ) from error


@dataclass(frozen=True, slots=True)
class _Observed:
    """The observed steps of a run.

    Each row of `work` describes one step. It contains a factor for each time in `_COLUMNS`; the
    step's duration is the sum of the times multiplied by their factors. `duration_s` contains the
    durations of the steps. `sequences` contains the number of sequences in each step, without the
    prompt steps of requests that ran alone.
    """

    work: Floats
    duration_s: Floats
    sequences: Floats


@dataclass(frozen=True, slots=True)
class _RunningSums:
    """A running sum as a function of time.

    `times_s` contains the times at which the sum changes, in ascending order. `values[0]` is the
    sum before the first change, and `values[i]` is the sum from `times_s[i - 1]` onwards.
    """

    times_s: Floats
    values: Floats

    @classmethod
    def of(cls, times_s: Floats, changes: Floats) -> _RunningSums:
        order = np.argsort(times_s, kind="stable")
        return cls(times_s[order], np.concatenate([[0.0], np.cumsum(changes[order])]))

    def at(self, times_s: Floats) -> Floats:
        found: Floats = self.values[np.searchsorted(self.times_s, times_s, side="right")]
        return found


def _observe(run: MeasuredRun) -> _Observed:
    answers = [record for record in run.records if record.is_completed and record.chunk_s]
    if not answers:
        raise BadInput(
            f"No completed request in {run.name} generated a token.",
            why="calibration requires token arrival times",
            next_step="run `tllm bench token-norm-dist --stream --output DIR` to measure again",
        )
    _check_streamed(run, answers)
    lengths = np.array([each.num_input_tokens for each in answers], np.float64)
    first_s = np.array([each.chunk_s[0] for each in answers])
    last_s = np.array([each.chunk_s[-1] for each in answers])
    outputs = np.array([each.num_output_tokens for each in answers], np.float64)
    all_s = np.concatenate([each.chunk_s for each in answers])
    start_s = np.concatenate([each.chunk_s[:-1] for each in answers])
    stop_s = np.concatenate([each.chunk_s[1:] for each in answers])
    # Tokens that were received in the same read have the same timestamp. Exclude the steps between
    # these tokens, because their duration is unknown.
    is_separate = stop_s > start_s
    start_s, stop_s = start_s[is_separate], stop_s[is_separate]
    if not len(start_s):
        raise _insufficient_steps(
            run.name, "no response has tokens with different timestamps", "--output-mean 100"
        )

    ends = np.concatenate([first_s, last_s])
    sequences = _RunningSums.of(ends, np.repeat([1.0, -1.0], len(answers)))
    tokens = _RunningSums.of(
        np.concatenate([all_s, ends]),
        np.concatenate([np.ones(len(all_s)), lengths, -(lengths + outputs)]),
    )
    prompts = _RunningSums.of(first_s, lengths)
    pairs = _RunningSums.of(first_s, lengths * (lengths - 1) / 2)
    middle_s = (start_s + stop_s) / 2
    late_s = _SAME_STEP * float(np.median(stop_s - start_s))
    in_step = sequences.at(middle_s)
    steps = np.column_stack(
        [
            np.ones(len(middle_s)),
            in_step,
            tokens.at(middle_s),
            prompts.at(stop_s + late_s) - prompts.at(start_s + late_s),
            pairs.at(stop_s + late_s) - pairs.at(start_s + late_s),
            np.zeros(len(middle_s)),
        ]
    )
    alone, alone_s = _observe_alone(answers, lengths, first_s)
    return _Observed(
        np.concatenate([steps, alone]), np.concatenate([stop_s - start_s, alone_s]), in_step
    )


def _observe_alone(
    answers: Sequence[RequestRecord], lengths: Floats, first_s: Floats
) -> tuple[Floats, Floats]:
    """Return the work and the TTFT of each request that ran alone until its first token arrived.

    The TTFT is measured from the send time.
    """
    sent_s = np.array([each.sent_s for each in answers])
    end_s = np.array([each.end_s for each in answers])
    in_flight = _RunningSums.of(
        np.concatenate([sent_s, end_s]), np.repeat([1.0, -1.0], len(answers))
    )
    arrivals = _RunningSums.of(sent_s, np.ones(len(answers)))
    is_alone = (in_flight.at(sent_s) == 1) & (arrivals.at(first_s) - arrivals.at(sent_s) == 0)
    none, one = np.zeros(len(answers)), np.ones(len(answers))
    rows = np.column_stack([one, none, none, lengths, lengths * (lengths - 1) / 2, one])
    return rows[is_alone], (first_s - sent_s)[is_alone]


def _fit(work: Floats, duration_s: Floats) -> tuple[Floats, Floats]:
    """Estimate the times named in `_COLUMNS` by least squares, excluding outliers.

    Return the times and the relative error of every observation, including outliers.
    """
    weighted, target = work / duration_s[:, None], np.ones(len(duration_s))
    counts = np.ones(len(duration_s), bool)
    for _ in range(_ROUNDS):
        parts = _solve_without_negatives(weighted[counts], target[counts])
        errors = weighted @ parts - target
        spread = float(np.median(np.abs(errors)))
        counts = np.abs(errors) <= max(_OUTLIER * spread, 1e-9)
    return parts, errors


def _solve_without_negatives(rows: Floats, target: Floats) -> Floats:
    """Return the non-negative least-squares solution.

    Solve the equations for every subset of the unknowns that occur in `rows`, and keep the best
    solution without negative values.
    """
    scale = np.abs(rows).max(axis=0)
    known = [column for column in range(rows.shape[1]) if scale[column] > 0]
    gram, moments = rows.T @ rows, rows.T @ target
    best, lowest_loss = np.zeros(rows.shape[1]), np.inf
    for number in range(1, len(known) + 1):
        for chosen in combinations(known, number):
            at = np.array(chosen)
            # Scale the columns, because sequence counts and token-pair counts differ by orders of
            # magnitude. Otherwise, columns with small values could result in singular values below
            # `rcond` times the largest one, and `lstsq` would treat these singular values as 0.
            scaled = gram[np.ix_(at, at)] / np.outer(scale[at], scale[at])
            found = np.linalg.lstsq(scaled, moments[at] / scale[at], rcond=1e-12)[0] / scale[at]
            if (found < 0).any():
                continue
            loss = float(found @ gram[np.ix_(at, at)] @ found - 2 * moments[at] @ found)
            if loss < lowest_loss:
                best, lowest_loss = np.zeros(rows.shape[1]), loss
                best[at] = found
    return best


def _compare(run: MeasuredRun, simulation: Simulation) -> tuple[Comparison, ...]:
    """Compare the measured latencies and token rate with a simulation of the completed requests."""
    completed = (each for each in run.records if each.is_completed)
    answers = sorted(completed, key=lambda each: each.sent_s)
    requests = [_to_spec(each) for each in answers]
    due_s = None if run.concurrency else [each.sent_s - answers[0].sent_s for each in answers]
    replayed = run_simulated(requests, simulation, SendSchedule(due_s, run.concurrency))
    measured = summarize(answers, AllAtOnce(), streamed=True)
    simulated = summarize(replayed, AllAtOnce(), streamed=True)
    both = (measured, simulated)
    times = [
        Comparison(
            run.name,
            f"{metric.label} {figure} (ms)",
            *(_read(each.times[from_sent.key], f"{figure}_ms") for each in both),
        )
        for metric, from_sent, figure in (
            (TTFT, TTFT_FROM_SENT, "p50"),
            (ITL, ITL, "p50"),
            (LATENCY, LATENCY_FROM_SENT, "p50"),
            (LATENCY, LATENCY_FROM_SENT, "p90"),
        )
    ]
    rates = [each.rates[OUTPUT_TOKEN_RATE.key] or 0.0 for each in both]
    return (*times, Comparison(run.name, OUTPUT_TOKEN_RATE.label, *rates))


def _read(times: Distribution | None, figure: str) -> float:
    return float(getattr(times, figure)) if times else 0.0


def _to_spec(record: RequestRecord) -> RequestSpec:
    """Convert a measured request to a `RequestSpec`.

    Each token of the prompt is the request's index, so that only the turns of a conversation share
    prefixes.
    """
    ids = np.full(record.num_input_tokens, record.index, np.int32)
    return RequestSpec(ids, record.num_output_tokens)


def _check_streamed(run: MeasuredRun, answers: Sequence[RequestRecord]) -> None:
    if any(tokens > 1 for each in answers for tokens in each.chunk_tokens):
        raise BadInput(
            f"The result {run.name} does not contain a timestamp for each token.",
            why="some responses contain several tokens, for example because they were not streamed",
            next_step="run `tllm bench token-norm-dist --stream "
            f"--output {shlex.quote(run.name + '-stream')}` to measure again with streaming",
        )


def _check_steps_suffice(runs: Sequence[MeasuredRun], observed: Sequence[_Observed]) -> None:
    names = ", ".join(run.name for run in runs)
    sequences = np.concatenate([each.sequences for each in observed])
    if len(sequences) < _MIN_GAPS:
        what = (
            f"calibration requires at least {_MIN_GAPS} gaps between tokens, but the runs contain "
            f"only {len(sequences)}"
        )
        raise _insufficient_steps(names, what, "--num-requests 200")
    lengths = [each.num_input_tokens for run in runs for each in run.records if each.is_completed]
    if not _is_spread(np.array(lengths, np.float64), _MIN_LENGTH_SPREAD):
        what = f"most prompts have a similar length (median: {int(np.median(lengths))})"
        mean = int(np.median(lengths))
        raise _insufficient_steps(
            names, what, f"--input-mean {mean} --input-stdev {max(mean // 2, 1)}"
        )
    if not _is_spread(sequences, _MIN_IN_FLIGHT_SPREAD):
        number = int(np.median(sequences))
        what = f"most steps have a similar number of sequences (median: {number})"
        other = 32 if number < 16 else 1
        raise BadInput(
            f"The time per sequence in a step cannot be determined from {names}.",
            why=what,
            next_step=f"measure again with --concurrency {other}, then run "
            "`tllm bench calibrate DIR DIR` on both results",
        )


def _is_spread(values: Floats, factor: float) -> bool:
    low, high = np.percentile(values, (5, 95))
    return bool(high >= factor * low)


def _insufficient_steps(names: str, why: str, options: str) -> BadInput:
    return BadInput(
        f"The engine's step timing cannot be determined from {names}.",
        why=why,
        next_step=f"run `tllm bench token-norm-dist --stream {options} --output DIR` to measure "
        "again",
    )
