"""From one request's record to its times: the formulas. docs/metrics.md says them in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.model.slo import Objective
from trtllm_serve_cli.bench.stats.confidence import statistic


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


def times_of(record: RequestRecord, metric: str) -> list[float]:
    """What a completed, streamed request adds to the sample of one of `slo.METRICS`, in seconds."""
    match metric:
        case "ttft":
            return [record.chunk_s[0] - record.due_s]
        case "itl":
            return itl_s(record)
        case "tpot":
            return [tpot_s(record)] if record.num_output_tokens > 1 else []
        case "queue":
            return [] if record.queue_s is None else [record.queue_s]
        case _:
            return [record.end_s - record.due_s]


def is_good(record: RequestRecord, objectives: Iterable[Objective]) -> bool:
    """Whether a completed request meets every objective by itself.

    Its one TTFT, TPOT, latency or queue time is held against the limit, whatever the statistic; of
    its gaps the statistic is taken. Without a second token there is no gap that could be too long;
    a queue time that the server does not tell meets nothing.
    """
    return all(_is_within(each, times_of(record, each.metric)) for each in objectives)


def _is_within(objective: Objective, times_s: Sequence[float]) -> bool:
    if not times_s:
        return objective.metric != "queue"
    return statistic(times_s, objective.percent) * 1e3 <= objective.limit_ms
