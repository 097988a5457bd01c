"""Divide a run's requests among worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.model.arrivals import (
    AllAtOnce,
    AtConcurrency,
    AtRate,
    AtTimes,
    Load,
    plan_due_times,
    plan_due_times_until,
    ramp_s,
)
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, Workload

FALLBACK_VOCAB_SIZE = 1000
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Stream:
    """An endless sequence of requests for a closed loop with a time limit.

    The requests are drawn from the workload on demand. From a data set, only every `step`-th
    request is drawn, starting with request number `start`.
    """

    workload: Workload
    vocab_size: int
    rng: np.random.Generator
    start: int = 0
    step: int = 1

    def __iter__(self) -> Iterator[RequestSpec]:
        for start in count(self.start, _BLOCK * self.step):
            yield from self.workload.draw(_BLOCK, self.vocab_size, self.rng, start, self.step)


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's share of a run: every `step`-th request, starting with request `first`.

    The requests are sent to the models in turn. In an open loop, `due_s` contains the due time of
    each request, and `concurrency` is an optional cap on the requests in flight. In a closed loop,
    `due_s` is `None`, and `concurrency` is the number of requests in flight.
    """

    models: tuple[ServedModel, ...]
    request_options: RequestOptions
    first: int
    step: int
    specs: Sequence[RequestSpec] | Stream
    due_s: tuple[float, ...] | None
    concurrency: int | None
    ramp_s: float
    duration_s: float | None
    warmup: tuple[RequestSpec, ...] = ()
    keeps_text: bool = False

    @property
    def num_planned(self) -> int | None:
        """The number of requests, including the later turns of conversations.

        It is `None` if the share is unlimited.
        """
        if isinstance(self.specs, Stream):
            return None
        return sum(1 + len(spec.turns) for spec in self.specs)

    def numbered(self) -> Iterator[tuple[int, int, RequestSpec]]:
        """Yield the index in the run, the model index and the specification of each request.

        The models alternate within each share. With two workers and two models, selecting the model
        by request index would send all requests of a worker to the same model.
        """
        for turn, spec in enumerate(self.specs):
            yield self.first + turn * self.step, (self.first + turn) % len(self.models), spec


def plan_workers(
    settings: BenchmarkSettings,
    models: Sequence[ServedModel],
    *,
    run: int = 0,
    start: int = 0,
    keeps_text: bool = False,
) -> list[Share]:
    """Return one share for each worker.

    The number of workers is `settings.num_workers`, but at most the load's concurrency. The same
    settings, `run` and `start` result in the same requests and, in an open loop, the same due
    times, regardless of the number of warm-up requests. Loads with different rates or concurrencies
    have different random prompts. Otherwise, the prompts for a sweep's later loads would already be
    in the server's prefix cache.

    A data set starts with request number `start` and uses the preceding requests for the warm-up.
    """
    seed = settings.seed, run
    warmup_rng, workload_rng, _ = np.random.default_rng(seed + _seed_of(settings.load)).spawn(3)
    arrivals_rng = np.random.default_rng(seed).spawn(3)[2]
    vocab_size = find_vocab_size(models)
    due_s, num_requests = _plan_times(settings, arrivals_rng)
    max_in_flight = _max_in_flight(settings.load)
    num_shares = min(settings.num_workers, max_in_flight or settings.num_workers)
    num_warmup = settings.num_warmup_requests
    warmup = tuple(settings.workload.draw(num_warmup, vocab_size, warmup_rng, start - num_warmup))
    if num_requests is None:
        rngs = [workload_rng] if num_shares == 1 else workload_rng.spawn(num_shares)
    else:
        specs = settings.workload.draw(num_requests, vocab_size, workload_rng, start)
    return [
        Share(
            models=tuple(models),
            request_options=settings.request_options,
            first=first,
            step=num_shares,
            specs=Stream(settings.workload, vocab_size, rngs[first], start + first, num_shares)
            if num_requests is None
            else specs[first::num_shares],
            due_s=None if due_s is None else due_s[first::num_shares],
            concurrency=max_in_flight
            and max_in_flight // num_shares + (first < max_in_flight % num_shares),
            ramp_s=ramp_s(settings.load),
            duration_s=settings.duration_s,
            warmup=() if first else warmup,
            keeps_text=keeps_text,
        )
        for first in range(num_shares)
    ]


def find_vocab_size(models: Sequence[ServedModel]) -> int:
    """Return the smallest vocabulary size among the models.

    Random token ids are below this size, so that they are valid for every model. If a model's
    vocabulary size is unknown, assume `FALLBACK_VOCAB_SIZE`.
    """
    return min(model.vocab_size or FALLBACK_VOCAB_SIZE for model in models)


def _plan_times(
    settings: BenchmarkSettings, rng: np.random.Generator
) -> tuple[tuple[float, ...] | None, int | None]:
    """Return the due times and the number of requests in a run.

    The due times are `None` in a closed loop. The number of requests is `None` in a closed loop
    with a time limit.
    """
    load, duration_s = settings.load, settings.duration_s
    if isinstance(load, AtConcurrency):
        return None, None if duration_s is not None else settings.num_requests
    if duration_s is not None and not isinstance(load, AllAtOnce):
        due_s = plan_due_times_until(load, duration_s, rng)
    else:
        due_s = plan_due_times(load, settings.num_requests, rng)
    return tuple(due_s.tolist()), len(due_s)


def _seed_of(load: Load) -> tuple[int, int]:
    rate_per_s = load.request_rate_per_s if isinstance(load, AtRate) else 0.0
    return round(rate_per_s * 1e6), _max_in_flight(load) or 0


def _max_in_flight(load: Load) -> int | None:
    return load.concurrency if isinstance(load, AtConcurrency | AtRate | AtTimes) else None
