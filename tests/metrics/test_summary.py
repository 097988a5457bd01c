from __future__ import annotations

import pytest

from tests.samples.metrics_pages import PAGE
from trtllm_serve_cli.metrics.parse import Snapshot, parse_metrics
from trtllm_serve_cli.metrics.summary import (
    EngineRow,
    GpuRow,
    HostRow,
    ModelRow,
    rate_per_s,
    summarize,
)

SNAPSHOT = parse_metrics(PAGE, 10.0)


def test_model_has_its_requests_and_mean_times() -> None:
    assert summarize(SNAPSHOT).models[0] == ModelRow(
        model="ensemble",
        version="1",
        num_succeeded=6,
        num_failed=3,
        failures={"canceled": 2, "backend": 1},
        num_inferences=8,
        num_pending=5,
        queue_ms=0.5,
        compute_ms=2.0,
        requests_per_s=None,
    )


def test_model_without_requests_has_no_times() -> None:
    row = summarize(SNAPSHOT).models[1]
    assert (row.num_succeeded, row.queue_ms, row.num_pending) == (0, None, None)


def _model_page(num_requests: int, queue_us: int, compute_us: int) -> Snapshot:
    counters = {
        "nv_inference_request_success": num_requests,
        "nv_inference_queue_duration_us": queue_us,
        "nv_inference_compute_infer_duration_us": compute_us,
    }
    page = "".join(f'{name}{{model="m",version="1"}} {value}\n' for name, value in counters.items())
    return parse_metrics(page, 0.0)


@pytest.mark.parametrize(
    ("after", "queue_ms", "compute_ms"),
    [
        ((14, 44_000, 100_000), 6.0, 20.0),
        ((10, 20_000, 20_000), None, None),
        ((2, 8, 16), 4e-3, 8e-3),
    ],
    ids=["more requests", "no more requests", "reset"],
)
def test_mean_times_cover_the_time_since_the_earlier_scrape(
    after: tuple[int, int, int], queue_ms: float | None, compute_ms: float | None
) -> None:
    (row,) = summarize(_model_page(*after), _model_page(10, 20_000, 20_000)).models
    assert (row.num_succeeded, row.queue_ms, row.compute_ms) == (after[0], queue_ms, compute_ms)


def test_engine_has_its_cache_and_worker() -> None:
    assert summarize(SNAPSHOT).engines == (
        EngineRow(
            model="tensorrt_llm",
            version="1",
            num_active=7,
            num_scheduled=4,
            num_context=1,
            num_waiting=3,
            max_requests=256,
            kv_blocks_used=250,
            kv_blocks_max=1000,
            kv_fraction=0.25,
            tokens_per_block=32,
            memory_bytes={"cpu": 3145728},
            iteration=123,
            iterations_per_s=None,
            is_worker_up=True,
            num_worker_restarts=2,
        ),
    )


def test_engine_has_its_transfers_between_disaggregated_servers() -> None:
    name = "nv_trt_llm_disaggregated_serving_metrics"
    labels = 'model="tensorrt_llm",version="1"'
    page = (
        f'{name}{{disaggregated_serving_type="kv_cache_transfer_ms",{labels}}} 50\n'
        f'{name}{{disaggregated_serving_type="request_count",{labels}}} 4\n'
    )
    (engine,) = summarize(parse_metrics(page, 0)).engines
    assert (engine.num_kv_transfers, engine.kv_transfer_ms) == (4, 12.5)
    later = parse_metrics(page.replace(" 4", " 6").replace(" 50", " 80"), 1)
    (engine,) = summarize(later, parse_metrics(page, 0)).engines
    assert (engine.num_kv_transfers, engine.kv_transfer_ms) == (6, 15.0)
    (engine,) = summarize(parse_metrics(page.replace(" 4", " 0"), 0)).engines
    assert (engine.num_kv_transfers, engine.kv_transfer_ms) == (0, None)


def test_host_has_its_gpus() -> None:
    gpu = GpuRow("GPU-1", 0.5, 35_000_000_000, 150_000_000_000, 350.25, 700.0)
    assert summarize(SNAPSHOT).host == HostRow(0.985, 666636288, 25276510208, (gpu,))


def test_empty_page_gives_an_empty_summary() -> None:
    summary = summarize(Snapshot(0.0, ()))
    assert (summary.models, summary.engines, summary.host) == (
        (),
        (),
        HostRow(None, None, None, ()),
    )


@pytest.mark.parametrize(
    ("before", "after", "elapsed_s", "rate"),
    [(10, 30, 4.0, 5.0), (10, 10, 1.0, 0.0), (100, 6, 2.0, 3.0), (1, 2, 0.0, None)],
    ids=["grows", "rests", "reset", "no time"],
)
def test_rate_between_two_scrapes(
    before: int, after: int, elapsed_s: float, rate: float | None
) -> None:
    earlier = parse_metrics(f'a{{model="m"}} {before}\n', 1.0)
    later = parse_metrics(f'a{{model="m"}} {after}\n', 1.0 + elapsed_s)
    assert rate_per_s(later, earlier, "a", model="m") == rate


def test_rate_of_a_new_counter_is_unknown() -> None:
    assert rate_per_s(SNAPSHOT, Snapshot(1.0, ()), "nv_inference_count") is None


def test_summary_has_rates_since_the_earlier_scrape() -> None:
    later = parse_metrics(PAGE.replace("} 6\n", "} 26\n").replace(" 123\n", " 223\n"), 20.0)
    summary = summarize(later, SNAPSHOT)
    assert (summary.models[0].requests_per_s, summary.engines[0].iterations_per_s) == (2.0, 10.0)


def test_instances_of_an_engine_are_one_row() -> None:
    def page(instance: str, used: int, up: int) -> str:
        labels = f'instance="{instance}",model="m",version="1"'
        kv, memory = "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_runtime_memory_metrics"
        return (
            f'{kv}{{{labels},kv_cache_block_type="used"}} {used}\n'
            f'{kv}{{{labels},kv_cache_block_type="max"}} 100\n'
            f'{kv}{{{labels},kv_cache_block_type="fraction"}} {used / 100}\n'
            f'{kv}{{{labels},kv_cache_block_type="tokens_per"}} 32\n'
            f'{memory}{{{labels},memory_type="cpu"}} 5\n'
            f"tllm_engine_worker_up{{{labels}}} {up}\n"
        )

    both = page("m_0_0", 10, 1) + page("m_0_1", 30, 0)
    (row,) = summarize(parse_metrics(both, 0.0)).engines
    assert (row.kv_blocks_used, row.kv_blocks_max, row.kv_fraction) == (40, 200, 0.2)
    assert (row.tokens_per_block, row.memory_bytes, row.is_worker_up) == (32, {"cpu": 10}, False)
