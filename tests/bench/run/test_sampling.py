from __future__ import annotations

import os
import signal
import time
from multiprocessing.process import BaseProcess

import pytest

from tests.fakes.triton.server import FakeTriton
from trtllm_serve_cli.bench.run.sampling import ServerSample, sampling

PAGE = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 3
"""


def test_samples_use_the_clients_clock() -> None:
    samples: list[ServerSample] = []
    before = time.perf_counter()
    with (
        FakeTriton(metrics_pages=[PAGE]) as triton,
        sampling({1: triton.endpoint.metrics}, 0.05, samples),
    ):
        while len(triton.calls) < 3:
            time.sleep(0.01)
    assert len(samples) >= 2
    assert before < samples[0].at_s < samples[-1].at_s < time.perf_counter()
    assert samples[0].target == 1
    assert samples[0].state is not None
    assert samples[0].state["engines"][0]["num_active"] == 3
    line = samples[0].to_json(before)
    assert 0 < line["at_s"] < 60
    assert {"target", "models", "engines", "host"} < set(line)


def test_unreachable_metrics_are_recorded_as_errors() -> None:
    samples: list[ServerSample] = []
    with sampling({0: "127.0.0.1:1"}, 0.1, samples):
        time.sleep(0.3)
    assert samples
    assert {sample.error for sample in samples} == {"No server publishes metrics at 127.0.0.1:1."}
    assert "error" in samples[0].to_json(0.0)


@pytest.mark.parametrize(
    ("number", "has_samples"), [(signal.SIGINT, True), (signal.SIGKILL, False)]
)
def test_signal_to_a_starting_sampler_does_not_end_the_run(
    number: signal.Signals, has_samples: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = BaseProcess.start

    def start_and_signal(process: BaseProcess) -> None:
        start(process)
        assert process.pid is not None
        os.kill(process.pid, number)

    monkeypatch.setattr(BaseProcess, "start", start_and_signal)
    samples: list[ServerSample] = []
    with sampling({0: "127.0.0.1:1"}, 0.1, samples):
        pass
    assert bool(samples) is has_samples


def test_samples_nothing_without_addresses() -> None:
    samples: list[ServerSample] = []
    with sampling({}, 0.1, samples):
        pass
    assert samples == []
