"""Compute the time series for a run from the client's requests and the server's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.bench.model.records import RequestRecord

Point = tuple[float, float]
State = Mapping[str, Any]
_SENDING_S = 1e-3


@dataclass(frozen=True, slots=True)
class ServerSeries:
    """A time series for one metric of one server.

    `quantity` is a key of `QUANTITIES`. `target` is the server's index. Each point contains the
    time in seconds since the start of the run and the metric's value.
    """

    quantity: str
    target: int
    points: tuple[Point, ...]


def count_in_flight(records: Iterable[RequestRecord]) -> list[Point]:
    """Return the number of requests in flight over time, with a point for each change."""
    return _accumulate((record.sent_s, record.end_s) for record in records)


def count_held(records: Iterable[RequestRecord]) -> list[Point]:
    """Return the number of due but unsent requests over time, with a point for each change.

    Requests sent within 1 ms of their due time are not counted, because sending a request always
    takes some time.
    """
    waits = ((r.due_s, r.sent_s) for r in records if r.sent_s > r.due_s + _SENDING_S)
    return _accumulate(waits)


def _accumulate(spans: Iterable[tuple[float, float]]) -> list[Point]:
    changes: dict[float, int] = {}
    for begin, end in spans:
        changes[begin] = changes.get(begin, 0) + 1
        changes[end] = changes.get(end, 0) - 1
    points, count = [], 0
    for time in sorted(changes):
        count += changes[time]
        points.append((time, float(count)))
    return points


def thin(steps: Sequence[Point], most: int) -> list[Point]:
    """Reduce a step line to about `most` steps without losing peaks.

    Divide the time into `most` equal intervals. The result contains the maximum value in each
    interval in which a step begins, and the last step. A line of up to `most` steps is unchanged.
    """
    if len(steps) <= most:
        return list(steps)
    begin, end = steps[0][0], steps[-1][0]
    width = (end - begin) / most or 1.0
    kept: dict[int, Point] = {}
    level = 0.0
    for time, value in steps:
        place = min(int((time - begin) / width), most - 1)
        # Include the previous value, because it still applies at the start of the interval.
        before = kept.get(place, (begin + place * width, level))[1]
        kept[place] = (begin + place * width, max(before, value))
        level = value
    return [*kept.values(), steps[-1]]


# Maps each server metric to its chart title and unit.
QUANTITIES: Mapping[str, tuple[str, str]] = {
    "kv_cache": ("Server KV cache", "In use (%)"),
    "queue": ("Server queue", "Waiting requests"),
    "batch": ("Server batch", "Running requests"),
    "gpu": ("Server GPU", "In use (%)"),
}


def server_series(samples: Iterable[State], run: int = 0) -> list[ServerSeries]:
    """Return the time series of the servers' metrics in a run, in the order of `QUANTITIES`."""
    found: dict[tuple[str, int], list[Point]] = {}
    for sample in samples:
        if sample.get("run", 0) != run or "error" in sample:
            continue
        for quantity, value in _quantities(sample).items():
            if value is not None:
                place = (quantity, int(sample["target"]))
                found.setdefault(place, []).append((float(sample["at_s"]), value))
    order = list(QUANTITIES)
    places = sorted(found, key=lambda place: (order.index(place[0]), place[1]))
    return [ServerSeries(*place, tuple(sorted(found[place]))) for place in places]


def _quantities(state: State) -> dict[str, float | None]:
    engines, gpus = state.get("engines", ()), state.get("host", {}).get("gpus", ())
    used, held = _total(engines, "kv_blocks_used"), _total(engines, "kv_blocks_max")
    # Prefer the engines' counts. The models' counts include a request twice if it is pending in
    # both the calling model and the called model.
    waiting = _total(engines, "num_waiting")
    pending = _total(state.get("models", ()), "num_pending")
    utilization = [gpu["utilization"] for gpu in gpus if gpu.get("utilization") is not None]
    return {
        "kv_cache": 100 * used / held if used is not None and held else None,
        "queue": pending if waiting is None else waiting,
        "batch": _total(engines, "num_scheduled"),
        "gpu": 100 * sum(utilization) / len(utilization) if utilization else None,
    }


def _total(rows: Iterable[State], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return float(sum(values)) if values else None
