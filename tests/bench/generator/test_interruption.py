"""Interrupts before, during and after the work of a run's workers."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.bench.generator.interruption import interruptible
from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.generator.worker_plan import Share, plan_workers
from trtllm_serve_cli.bench.generator.worker_pool import run_workers
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce
from trtllm_serve_cli.bench.model.served_model import Target, fetch_model
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist


@pytest.fixture
def shares(serve: Callable[[FakeTriton], str]) -> list[Share]:
    settings = BenchmarkSettings(TokenNormDist(8, 2, 5, 1), AllAtOnce(), 6, num_warmup_requests=0)
    model = fetch_model(Target(serve(FakeTriton())), settings.input_kind)
    return list(plan_workers(settings, (model,), run=0, start=0))


def test_interrupt_before_the_run_sends_nothing(shares: list[Share]) -> None:
    with interruptible() as interruption:
        signal.raise_signal(signal.SIGINT)
        (result,) = run_workers(shares, lambda counts: None, interruption)
    assert (result.was_interrupted, result.records) == (True, ())


def test_interrupt_after_the_run_keeps_the_measurements(shares: list[Share]) -> None:
    with interruptible() as interruption:
        (result,) = run_workers(shares, lambda counts: None, interruption)
        signal.raise_signal(signal.SIGINT)
    assert (interruption.has_occurred, len(result.records)) == (True, 6)


def test_second_interrupt_raises() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible() as interruption:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
    assert interruption.has_occurred
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
