"""From records to figures: every formula of the benchmark. docs/metrics.md says them in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trtllm_serve_cli.bench.arrivals import AtRate, Load
from trtllm_serve_cli.bench.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sample of times, in milliseconds.

    Percentiles are by nearest rank, as upstream's benchmark takes them: the smallest value seen
    that at least so many per cent of the sample do not exceed.
    """

    num_samples: int
    mean_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. `None` is a quantity that the run cannot tell.

    Times count from when a request was due, the `…_from_sent` ones from when it was sent. Rates and
    times are those of completed requests; the offered and achieved rates are of all requests and
    exist only in a run at a rate.
    """

    num_requests: int
    num_completed: int
    num_failed: int
    num_interrupted: int
    failures: dict[str, int]
    duration_s: float
    num_input_tokens: int
    num_output_tokens: int
    mean_in_flight: float
    offered_requests_per_s: float | None
    achieved_requests_per_s: float | None
    completed_requests_per_s: float
    output_tokens_per_s: float
    request_latency: Distribution | None
    request_latency_from_sent: Distribution | None
    ttft: Distribution | None
    ttft_from_sent: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    schedule_lag: Distribution | None


def summarize(records: Sequence[RequestRecord], load: Load, *, streamed: bool) -> Summary:
    """The figures of `records`. TTFT, ITL and TPOT exist only when the answers were streamed."""
    completed = [record for record in records if record.is_completed]
    streams = [record for record in completed if streamed]
    interrupted = sum(record.is_interrupted for record in records)
    duration_s = _span_s(records)
    num_output_tokens = sum(record.num_output_tokens for record in completed)
    return Summary(
        num_requests=len(records),
        num_completed=len(completed),
        num_failed=len(records) - len(completed) - interrupted,
        num_interrupted=interrupted,
        failures=_count_failures(records),
        duration_s=duration_s,
        num_input_tokens=sum(record.num_input_tokens for record in completed),
        num_output_tokens=num_output_tokens,
        mean_in_flight=_per_s(sum(r.end_s - r.sent_s for r in records), duration_s),
        offered_requests_per_s=_rate_of(records, load, lambda record: record.due_s),
        achieved_requests_per_s=_rate_of(records, load, lambda record: record.sent_s),
        completed_requests_per_s=_per_s(len(completed), duration_s),
        output_tokens_per_s=_per_s(num_output_tokens, duration_s),
        request_latency=distribute(r.end_s - r.due_s for r in completed),
        request_latency_from_sent=distribute(r.end_s - r.sent_s for r in completed),
        ttft=distribute(r.chunk_s[0] - r.due_s for r in streams),
        ttft_from_sent=distribute(r.chunk_s[0] - r.sent_s for r in streams),
        itl=distribute(gap for record in streams for gap in itl_s(record)),
        tpot=distribute(tpot_s(r) for r in streams if r.num_output_tokens > 1),
        schedule_lag=distribute(r.sent_s - r.due_s for r in records),
    )


def itl_s(record: RequestRecord) -> list[float]:
    """Every gap between successive responses with tokens, in seconds."""
    return [later - earlier for earlier, later in pairwise(record.chunk_s)]


def tpot_s(record: RequestRecord) -> float:
    """Mean time per output token after the first: (last - first) / (n - 1), in seconds.

    Raises `ValueError` below two tokens.
    """
    if record.num_output_tokens < 2:
        raise ValueError("TPOT needs at least two tokens")
    return (record.chunk_s[-1] - record.chunk_s[0]) / (record.num_output_tokens - 1)


def distribute(times_s: Iterable[float]) -> Distribution | None:
    """The distribution of times given in seconds; `None` of none."""
    sample = np.fromiter(times_s, np.float64) * 1e3
    if not sample.size:
        return None
    p50, p90, p95, p99 = np.percentile(sample, (50, 90, 95, 99), method="inverted_cdf")
    return Distribution(
        num_samples=sample.size,
        mean_ms=float(sample.mean()),
        min_ms=float(sample.min()),
        p50_ms=float(p50),
        p90_ms=float(p90),
        p95_ms=float(p95),
        p99_ms=float(p99),
        max_ms=float(sample.max()),
    )


def _span_s(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    return max(record.end_s for record in records) - min(record.due_s for record in records)


def _per_s(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0


def _rate_of(
    records: Sequence[RequestRecord], load: Load, time_of: Callable[[RequestRecord], float]
) -> float | None:
    """Requests per second between the first and the last such time: n requests make n - 1 gaps."""
    if not isinstance(load, AtRate) or len(records) < 2:
        return None
    times_s = [time_of(record) for record in records]
    return _per_s(len(records) - 1, max(times_s) - min(times_s))


def _count_failures(records: Sequence[RequestRecord]) -> dict[str, int]:
    """How many requests failed of each kind, the most frequent first."""
    kinds = Counter(r.error.kind for r in records if r.error and not r.is_interrupted)
    return dict(kinds.most_common())
