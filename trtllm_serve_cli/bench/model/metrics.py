"""Declare the benchmark metrics.

To add a metric, add an entry to `TIMES` or `RATES`. The metrics in `TIMES` are measured for each
request. The metrics in `RATES` are computed from the completed requests of one or more runs. The
summary, objectives, tables, HTML page and comparison use these entries. `make docs` adds the
entries to the JSON schema and to docs/reference/benchmark-metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from trtllm_serve_cli.bench.model.records import RequestRecord

# The command-line options that a metric can require.
Option = Literal["--stream", "--server-times", "--slo"]


@dataclass(frozen=True, slots=True)
class TimeMetric:
    """A time metric, computed in seconds and displayed in milliseconds.

    - `key` identifies the metric in `summary.json`.
    - `label` is the metric's name in tables, and `title` is its name in charts and in the docs.
    - `definition` is the metric's formula.
    - `read` returns the samples from one request, in seconds.
    - `name` identifies the metric in objectives and in limits on changes. A metric without a `name`
      cannot have objectives or limits.
    - `needs` is the command-line option that the metric requires, or `None`.
    - `sampled` is what the samples measure: requests, or gaps between responses with tokens.
    - `compared` lists the percentiles that comparisons show by default.
    - `is_main` is true if the metric has charts, a tile, and columns in tables of runs and loads.
    - `includes_failed` is true if failed and interrupted requests are also sampled.
    """

    key: str
    label: str
    title: str
    definition: str
    read: Callable[[RequestRecord], list[float]]
    name: str = ""
    needs: Option | None = None
    sampled: Literal["requests", "gaps"] = "requests"
    compared: tuple[float, ...] = ()
    is_main: bool = False
    includes_failed: bool = False
    is_higher_better: ClassVar[bool] = False

    @property
    def heading(self) -> str:
        """The tile heading: the label if it is all uppercase, otherwise the title."""
        return self.label if self.label.isupper() else self.title

    def sample_s(self, records: Iterable[RequestRecord], *, streamed: bool) -> list[list[float]]:
        """Return a list of samples, in seconds, for each completed request.

        If `includes_failed` is true, the result also includes failed and interrupted requests. It
        is empty if the metric requires streaming and `streamed` is false.
        """
        if self.needs == "--stream" and not streamed:
            return []
        return [self.read(each) for each in records if each.is_completed or self.includes_failed]


@dataclass(frozen=True, slots=True)
class Completed:
    """The completed requests of one or more runs, from which rates are computed.

    `duration_s` is the total duration of the runs. `is_good` returns whether a request meets every
    objective. It is `None` if the benchmark has no objectives.
    """

    records: Sequence[RequestRecord]
    duration_s: float
    is_streamed: bool
    is_good: Callable[[RequestRecord], bool] | None = None

    def per_s(self, amounts: Iterable[float]) -> float:
        """Return the sum of `amounts` divided by `duration_s`, or 0 if `duration_s` is 0."""
        return per_s(sum(amounts), self.duration_s)


@dataclass(frozen=True, slots=True)
class RateMetric:
    """A rate per second, computed over one or more runs.

    `read` returns the rate, or `None` if it was not measured. `upstream` is the rate's name in the
    output of tensorrtllm_backend's `benchmark_core_model.py`, or empty. The other fields have the
    same meaning as in `TimeMetric`. Tables omit rates without a `label`.
    """

    key: str
    label: str
    title: str
    definition: str
    read: Callable[[Completed], float | None]
    name: str = ""
    needs: Option | None = None
    upstream: str = ""
    is_higher_better: ClassVar[bool] = True


def itl_s(record: RequestRecord) -> list[float]:
    """Return the gaps between consecutive responses that contain tokens, in seconds."""
    return [later - earlier for earlier, later in pairwise(record.chunk_s)]


def tpot_s(record: RequestRecord) -> list[float]:
    """Return the mean time per token after the first token, in seconds, as a one-item list.

    The list is empty if the response has fewer than two tokens.
    """
    num_gaps = record.num_output_tokens - 1
    return [(record.chunk_s[-1] - record.chunk_s[0]) / num_gaps] if num_gaps > 0 else []


def _until_first_token(record: RequestRecord, start_s: float) -> list[float]:
    """Return the time from `start_s` to the first token, in seconds, as a one-item list.

    The list is empty if the response does not contain tokens.
    """
    return [] if record.first_token_s is None else [record.first_token_s - start_s]


def per_s(amount: float, duration_s: float) -> float:
    """Return `amount` per second, or 0 if the duration is 0."""
    return amount / duration_s if duration_s > 0 else 0.0


def _user_token_rate(run: Completed) -> float | None:
    times_s = [time_s for r in run.records if run.is_streamed for time_s in tpot_s(r) if time_s > 0]
    return math.fsum(1 / time_s for time_s in times_s) / len(times_s) if times_s else None


def _input_token_rate(run: Completed) -> float | None:
    num_tokens = sum(record.num_input_tokens for record in run.records)
    # Every prompt has tokens, so a sum of 0 means that the server did not count them.
    return None if run.records and not num_tokens else run.per_s([num_tokens])


def _goodput(run: Completed) -> float | None:
    return None if run.is_good is None else run.per_s(map(run.is_good, run.records))


TIMES = (
    LATENCY := TimeMetric(
        key="request_latency",
        name="latency",
        label="Latency",
        title="Request latency",
        definition="end - due",
        read=lambda record: [record.end_s - record.due_s],
        compared=(50, 95, 99),
        is_main=True,
    ),
    LATENCY_FROM_SENT := TimeMetric(
        key="request_latency_from_sent",
        label="Latency (sent)",
        title="Request latency, from send time",
        definition="end - sent",
        read=lambda record: [record.end_s - record.sent_s],
    ),
    TTFT := TimeMetric(
        key="ttft",
        name="ttft",
        label="TTFT",
        title="Time to first token",
        definition="first response with at least one token - due",
        read=lambda record: _until_first_token(record, record.due_s),
        needs="--stream",
        compared=(50, 95, 99),
        is_main=True,
    ),
    TTFT_FROM_SENT := TimeMetric(
        key="ttft_from_sent",
        label="TTFT (sent)",
        title="Time to first token, from send time",
        definition="first response with at least one token - sent",
        read=lambda record: _until_first_token(record, record.sent_s),
        needs="--stream",
    ),
    ITL := TimeMetric(
        key="itl",
        name="itl",
        label="ITL",
        title="Inter-token latency",
        definition="every gap between two consecutive responses with tokens; the gaps of all "
        "requests form one sample",
        read=itl_s,
        needs="--stream",
        sampled="gaps",
        compared=(50, 99),
        is_main=True,
    ),
    TimeMetric(
        key="tpot",
        name="tpot",
        label="TPOT",
        title="Time per output token",
        definition="(last token - first token) / (n - 1), where n is the request's number of "
        "output tokens; undefined if n < 2",
        read=tpot_s,
        needs="--stream",
        compared=(50,),
    ),
    TimeMetric(
        key="queue_time",
        name="queue",
        label="Queue (server)",
        title="Server queue time",
        definition="`first_scheduled_time_ns` - `arrival_time_ns`, on the server's clock",
        read=lambda record: [] if record.queue_s is None else [record.queue_s],
        needs="--server-times",
    ),
    SCHEDULE_LAG := TimeMetric(
        key="schedule_lag",
        label="Schedule lag",
        title="Schedule lag",
        definition="sent - due - held, for **all** requests; measures the delay in the client",
        read=lambda record: [record.sent_s - record.due_s - record.held_s],
        includes_failed=True,
    ),
)
RATES = (
    REQUEST_RATE := RateMetric(
        key="completed_requests_per_s",
        name="requests_per_s",
        label="Requests/s",
        title="Completed requests/s",
        definition="completed requests / duration",
        read=lambda run: run.per_s(1 for _ in run.records),
        upstream="Requests/Sec",
    ),
    RateMetric(
        key="input_tokens_per_s",
        label="",
        title="Input tokens/s",
        definition="input tokens of completed requests / duration",
        read=_input_token_rate,
    ),
    OUTPUT_TOKEN_RATE := RateMetric(
        key="output_tokens_per_s",
        name="output_tokens_per_s",
        label="Tokens/s",
        title="Output tokens/s",
        definition="output tokens of completed requests / duration",
        read=lambda run: run.per_s(record.num_output_tokens for record in run.records),
        upstream="OP tokens/sec",
    ),
    USER_TOKEN_RATE := RateMetric(
        key="output_tokens_per_s_per_user",
        label="Tokens/s per user",
        title="Output tokens/s per user",
        definition="mean of 1 / TPOT over streamed requests",
        read=_user_token_rate,
        needs="--stream",
    ),
    GOODPUT := RateMetric(
        key="goodput_requests_per_s",
        name="goodput",
        label="Goodput (requests/s)",
        title="Goodput (requests/s)",
        definition="completed requests that meet every objective / duration",
        read=_goodput,
        needs="--slo",
    ),
)

MAIN_TIMES = tuple(time for time in TIMES if time.is_main)
# Objectives accept only the names of times. Limits on changes also accept the names of rates.
NAMED_TIMES: Mapping[str, TimeMetric] = {time.name: time for time in TIMES if time.name}
NAMED_RATES: Mapping[str, RateMetric] = {rate.name: rate for rate in RATES if rate.name}
