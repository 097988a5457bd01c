"""What a model has counted of its requests, as Prometheus counters that Triton publishes.

A histogram is made of counters, too: `NAME_bucket` by `le`, `NAME_sum` and `NAME_count`, which is
what Prometheus keeps of one. Triton's own kind takes each observation as a message to the server,
and there is one for every token; counters take what has come of all since the last time.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Series(NamedTuple):
    """One counter: its family, and the value of the label that is the family's own ("": none)."""

    family: str
    value: str = ""


class Family(NamedTuple):
    help: str
    label: str = ""


class Histogram(NamedTuple):
    """Upper bounds of the buckets, rising; the last, which takes the rest, is not among them.

    `labels` are on all of its series.
    """

    help: str
    bounds: tuple[float, ...]
    labels: Mapping[str, str] = {}


OUTCOMES = ("stop", "length", "cancelled", "error", "rejected")
REQUESTS = "tllm_requests_total"
PROMPT_TOKENS = "tllm_prompt_tokens_total"
GENERATION_TOKENS = "tllm_generation_tokens_total"
TTFT = "tllm_time_to_first_token_seconds"
ITL = "tllm_inter_token_latency_seconds"
DURATION = "tllm_request_duration_seconds"
# Upstream's, with upstream's buckets.
INPUT_LENGTH = "nv_llm_input_token_len"
OUTPUT_LENGTH = "nv_llm_output_token_len"

COUNTERS = {
    REQUESTS: Family(
        "Requests that have ended: by an end token or stop word (stop), at max_tokens (length), "
        "given up by who asked (cancelled), failed while running (error), refused (rejected). "
        "Good: no error; a growing share of rejected means bad requests or a full queue",
        "outcome",
    ),
    PROMPT_TOKENS: Family("Prompt tokens of the requests that ran"),
    GENERATION_TOKENS: Family("Tokens generated; its rate is the throughput"),
}
_LENGTHS = (10, 50, 100, 500, 1000)
HISTOGRAMS = {
    TTFT: Histogram(
        "Seconds from the arrival of a request to its first token; queueing shows here first: "
        "bad when it grows while the rate of requests does not",
        (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    ),
    ITL: Histogram(
        "Seconds between successive tokens of a sequence; grows with the batch, readers notice "
        "it above 0.1",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
    ),
    DURATION: Histogram(
        "Seconds from the arrival of a request to its end, for those that ended by stop or length",
        (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    ),
    INPUT_LENGTH: Histogram(
        "Prompt tokens of a request", _LENGTHS, {"response_metric_type": "total_input_tokens"}
    ),
    OUTPUT_LENGTH: Histogram(
        "Generated tokens of a request", _LENGTHS, {"response_metric_type": "total_output_tokens"}
    ),
}


class RequestCounters:
    """Counts, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Series, float] = {
            Series(name, value): 0.0
            for name, family in COUNTERS.items()
            for value in (OUTCOMES if family.label else ("",))
        }
        # How many fell into each bucket alone, and the sum of all.
        self._buckets = {name: [0] * (len(each.bounds) + 1) for name, each in HISTOGRAMS.items()}
        self._sums = dict.fromkeys(HISTOGRAMS, 0.0)

    def count(self, family: str, number: float = 1, value: str = "") -> None:
        """Add `number` to a counter."""
        with self._lock:
            self._counts[Series(family, value)] += number

    def observe(self, histogram: str, value: float) -> None:
        """Put `value` into its bucket."""
        with self._lock:
            self._buckets[histogram][bisect_left(HISTOGRAMS[histogram].bounds, value)] += 1
            self._sums[histogram] += value

    def read(self) -> dict[Series, float]:
        """All series as they stand."""
        with self._lock:
            read = dict(self._counts)
            for name, histogram in HISTOGRAMS.items():
                read |= _cumulative(name, histogram.bounds, self._buckets[name])
                read[Series(f"{name}_sum")] = self._sums[name]
        return read


def _cumulative(name: str, bounds: Sequence[float], buckets: Sequence[int]) -> dict[Series, float]:
    read: dict[Series, float] = {}
    total = 0
    for bound, number in zip((*(f"{each:g}" for each in bounds), "+Inf"), buckets, strict=True):
        total += number
        read[Series(f"{name}_bucket", bound)] = total
    read[Series(f"{name}_count")] = total
    return read


class CounterMetrics:
    """Publishes a tally's series through Triton. `pb_utils` is Triton's module of that name."""

    def __init__(self, pb_utils: Any, labels: Mapping[str, str]) -> None:
        self._families = {
            name: pb_utils.MetricFamily(
                name=name, description=family.help, kind=pb_utils.MetricFamily.COUNTER
            )
            for name, family in _families().items()
        }
        self._metrics = {
            series: self._families[series.family].Metric(labels=_labels(series, labels))
            for series in RequestCounters().read()
        }
        self._told = dict.fromkeys(self._metrics, 0.0)

    def publish(self, counts: Mapping[Series, float]) -> None:
        """Add what has come since the last time; each change is a message to the server."""
        for series, count in counts.items():
            if grown := count - self._told[series]:
                self._metrics[series].increment(grown)
                self._told[series] = count

    def close(self) -> None:
        """Let go of everything while Triton still listens."""
        self._metrics.clear()
        self._families.clear()


def _families() -> dict[str, Family]:
    families = dict(COUNTERS)
    for name, histogram in HISTOGRAMS.items():
        families[f"{name}_bucket"] = Family(f"{histogram.help}: how many up to le", "le")
        families[f"{name}_sum"] = Family(f"{histogram.help}: the sum")
        families[f"{name}_count"] = Family(f"{histogram.help}: how many")
    return families


def _labels(series: Series, common: Mapping[str, str]) -> dict[str, str]:
    own = _families()[series.family].label
    histogram = HISTOGRAMS.get(series.family.rpartition("_")[0])
    return {
        **common,
        **(histogram.labels if histogram else {}),
        **({own: series.value} if own else {}),
    }
