from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import Any

import pytest

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.generator.worker_plan import Share, plan_workers
from trtllm_serve_cli.bench.model.arrivals import AtConcurrency
from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.workloads.dataset import Dataset
from trtllm_serve_cli.bench.workloads.spec import RequestSpec

MODEL = ServedModel("here", "tensorrt_llm", "1", "2.51.0", True, 8, 500)


def _dataset(num_entries: int) -> Dataset:
    prompts = (RequestSpec.of_text(str(entry), 4, ignores_eos=True) for entry in range(num_entries))
    return Dataset("d", tuple(prompts), (4,) * num_entries)


def _plan(num_entries: int, start: int = 0, num_models: int = 1, **settings: Any) -> list[Share]:
    chosen = {"workload": _dataset(num_entries), "load": AtConcurrency(4)} | settings
    return plan_workers(BenchmarkSettings(**chosen), [MODEL] * num_models, start=start)


def _entries(share: Share, num_requests: int) -> list[int]:
    return [int(spec.text or "") for _, _, spec in islice(share.numbered(), num_requests)]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_duration_repeats_the_whole_data_set(num_workers: int) -> None:
    shares = _plan(200, duration_s=1.0, num_workers=num_workers)
    drawn = [_entries(share, 600 // num_workers) for share in shares]
    assert drawn[0][:3] == [0, num_workers, 2 * num_workers]
    assert sorted(chain.from_iterable(drawn)) == sorted([*range(200)] * 3)


@pytest.mark.parametrize("duration_s", [None, 1.0], ids=["number", "duration"])
def test_data_set_starts_at_any_entry_and_warms_up_with_preceding_ones(
    duration_s: float | None,
) -> None:
    (share,) = _plan(9, 7, num_requests=4, duration_s=duration_s, num_warmup_requests=2)
    assert _entries(share, 4) == [7, 8, 0, 1]
    assert [spec.text for spec in share.warmup] == ["5", "6"]
    assert [spec.text for spec in _plan(9)[0].warmup] == ["8"]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
@pytest.mark.parametrize("num_models", [1, 2, 3])
def test_every_worker_sends_to_every_model_in_turns(num_workers: int, num_models: int) -> None:
    shares = _plan(24, num_models=num_models, num_workers=num_workers, num_requests=24)
    numbered = [[(index, target) for index, target, _ in share.numbered()] for share in shares]
    for share in numbered:
        targets = [target for _, target in share]
        assert set(targets[:num_models]) == set(range(num_models))
        assert targets[num_models:] == targets[:-num_models]
    everything = sorted(chain.from_iterable(numbered))
    assert [index for index, _ in everything] == [*range(24)]
    assert Counter(target for _, target in everything) == dict.fromkeys(
        range(num_models), 24 // num_models
    )
