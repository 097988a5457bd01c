"""Triton's queue in front of a model with one slot: priorities and timeouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.e2e.conftest import UNUSED, Tllm, homes_with, without_models
from tests.e2e.core import gauge, tensor
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics

PROMPT = [1, 4093, 198, 1780, 314, 17933, 47, 2, 198, 1, 520, 9531, 198]
HIGH, LOW = 1, 2


@pytest.fixture(scope="module")
def endpoint(light: Tllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Serve a model that runs one request at a time and has a queue with two priorities."""
    folder = tmp_path_factory.mktemp("queue")
    repository = without_models(light, folder, [each for each in UNUSED if each != "ensemble"])
    with homes_with(repository, folder) as make:
        tllm = make()
        tllm.done(
            "set", "demo", "max_num_seqs=1", "triton_max_batch_size=1", "decoupled_mode=false",
            "priority_levels=2", f"default_priority_level={LOW}",
            # A request may wait for less than this, but not for more.
            "default_timeout_microseconds=600000000",
        )  # fmt: skip
        started = tllm.start()
        assert started.returncode == 0, started.stdout + started.stderr
        yield tllm.endpoint()


def inputs_of(num_tokens: int) -> list[grpcclient.InferInput]:
    """Return the inputs of a request to `tensorrt_llm`."""
    return [
        tensor("input_ids", PROMPT),
        tensor("input_lengths", len(PROMPT)),
        tensor("request_output_len", num_tokens),
        tensor("return_perf_metrics", True),
    ]


def infer(endpoint: Endpoint, num_tokens: int, **options: int) -> int:
    """Send a request and return when it was scheduled, in ns of the engine's clock."""
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        answer = client.infer("tensorrt_llm", inputs_of(num_tokens), **options)
    return int(answer.as_numpy("first_scheduled_time_ns")[0][0])


def metric(endpoint: Endpoint, family: str, **labels: str) -> float:
    """Return a value of the metrics page."""
    return float(parse_metrics(fetch_metrics(endpoint.metrics), 0.0).value(family, **labels) or 0)


def num_queued(endpoint: Endpoint) -> float:
    return metric(endpoint, "nv_inference_pending_request_count", model="tensorrt_llm")


@pytest.fixture
def free_slot(endpoint: Endpoint) -> Iterator[Callable[[], None]]:
    """Start a long request, and yield a function that cancels it and so frees the slot."""
    wait_until(lambda: gauge(endpoint, "active") == 0)
    ended: list[object] = []
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        long = client.async_infer(
            "tensorrt_llm", inputs_of(6000), lambda result, error: ended.append(error)
        )
        wait_until(lambda: gauge(endpoint, "active") == 1)

        def free() -> None:
            assert not ended
            long.cancel()

        yield free
        long.cancel()


def test_higher_priority_is_scheduled_first(
    endpoint: Endpoint, free_slot: Callable[[], None]
) -> None:
    scheduled: list[tuple[int, int]] = []

    def send(priority: int) -> None:
        scheduled.append((infer(endpoint, 20, priority=priority), priority))

    # The first request may have left the queue already.
    waiting = [LOW, LOW, LOW, HIGH, HIGH]
    threads = [threading.Thread(target=send, args=(each,)) for each in waiting]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda number=number: num_queued(endpoint) == number)
    free_slot()
    for thread in threads:
        thread.join()
    order = [priority for _, priority in sorted(scheduled)]
    assert order.index(HIGH) <= 1 and order[-2:] == [LOW, LOW]


def test_request_that_exceeds_its_queue_timeout_is_rejected(
    endpoint: Endpoint, free_slot: Callable[[], None]
) -> None:
    with ThreadPoolExecutor(2) as threads:
        in_front = threads.submit(infer, endpoint, 1)
        wait_until(lambda: num_queued(endpoint) == 1)
        late = threads.submit(infer, endpoint, 20, timeout=50_000)
        # Triton checks the timeouts of its queue when a slot becomes free.
        wait_until(lambda: late.done() or num_queued(endpoint) == 2)
        time.sleep(0.1)
        free_slot()
        with pytest.raises(InferenceServerException, match="timeout expired"):
            late.result(60)
        in_front.result(60)


def text_inputs(**numbers: int) -> list[grpcclient.InferInput]:
    """Return the inputs of a request to `ensemble`."""
    prompt = grpcclient.InferInput("text_input", [1, 1], "BYTES")
    prompt.set_data_from_numpy(np.array([[b"Once upon a time"]], dtype=object))
    return [prompt, *(tensor(name, number) for name, number in numbers.items())]


def test_cancelled_request_frees_its_slot_while_others_wait(endpoint: Endpoint) -> None:
    def num_steps() -> float:
        return metric(endpoint, "nv_trt_llm_general_metrics", general_type="iteration_counter")

    wait_until(lambda: gauge(endpoint, "active") == 0)
    before = num_steps()
    inputs = text_inputs(max_tokens=6000, min_tokens=6000)
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        long = client.async_infer("ensemble", inputs, lambda result, error: None)
        wait_until(lambda: gauge(endpoint, "active") > 0)
        waiting = [
            threading.Thread(target=infer, args=(endpoint, 1), daemon=True) for _ in range(2)
        ]
        for thread in waiting:
            thread.start()
        wait_until(lambda: num_queued(endpoint) > 0)
        long.cancel()
        for thread in waiting:
            thread.join()
    assert num_steps() < before + 3000


def test_invalid_text_request_counts_as_rejected(endpoint: Endpoint) -> None:
    def num_ended(outcome: str) -> float:
        return metric(endpoint, "tllm_requests", model="ensemble", outcome=outcome)

    before = {outcome: num_ended(outcome) for outcome in ("rejected", "error")}
    with (
        grpcclient.InferenceServerClient(endpoint.grpc) as client,
        pytest.raises(InferenceServerException, match="runtime_top_k is -1"),
    ):
        client.infer("ensemble", text_inputs(max_tokens=1, top_k=-1))
    wait_until(lambda: num_ended("rejected") == before["rejected"] + 1)
    assert num_ended("error") == before["error"]
