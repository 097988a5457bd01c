"""Several adapters on engines that are loaded with one each."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.samples.lora_adapters import SITES, make_adapter, write_peft
from trtllm_serve_cli.runtime.engine import (
    EngineLimits,
    EngineStats,
    GenerationRequest,
    InvalidRequest,
    SequenceUpdate,
)
from trtllm_serve_cli.runtime.lora.adapter import Adapter, BadAdapter, encode_adapter
from trtllm_serve_cli.runtime.lora.adapter_engine import LoraEngine
from trtllm_serve_cli.runtime.lora.adapter_request import LoraOptions

UNKNOWN = (
    "LoRA task {} not found in cache. Please send LoRA weights with request (lora_weights and "
    "lora_config with lora_task_id)"
)


class TaggedEngine:
    """An engine whose tokens are the number of its adapter, 0 without an adapter."""

    limits = EngineLimits(max_seq_len=100, max_beam_width=1, vocab_size=100)

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.is_closed = False
        self.left: dict[int, int] = {}

    def submit(self, request: GenerationRequest) -> None:
        if request.max_new_tokens > 50:
            raise InvalidRequest("too many")
        if request.seed == 13:
            raise RuntimeError("no luck")
        self.left[request.id] = request.max_new_tokens

    def cancel(self, request_id: int) -> None:
        self.left.pop(request_id, None)

    def has_work(self) -> bool:
        return bool(self.left)

    def step(self) -> list[SequenceUpdate]:
        updates = []
        for request_id in list(self.left):
            self.left[request_id] -= 1
            is_last = not self.left[request_id]
            reason: Any = "length" if is_last else None
            updates.append(SequenceUpdate(request_id, 0, (self.tag,), reason))
            if is_last:
                del self.left[request_id]
        return updates

    def close(self) -> None:
        self.is_closed = True

    def stats(self) -> EngineStats:
        return EngineStats(
            active_requests=len(self.left), kv_blocks_max=8, tokens_per_block=32, memory_bytes=5
        )


def tag_of(adapter: Adapter) -> int:
    """Return the rank, by which sample adapters differ."""
    return len(next(iter(adapter.values())).a)


class Loader:
    """Loads engines and records them; waits for `gate` first."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.engines: list[TaggedEngine] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, adapter: Adapter) -> TaggedEngine:
        assert self.gate.wait(60)
        if tag_of(adapter) == 13:
            raise RuntimeError("no luck")
        self.loaded.append(tag_of(adapter))
        self.engines.append(TaggedEngine(tag_of(adapter)))
        return self.engines[-1]


@pytest.fixture
def load() -> Loader:
    return Loader()


def make(load: Callable[[Adapter], Any], **options: Any) -> LoraEngine:
    return LoraEngine(TaggedEngine(0), load, lambda: SITES, LoraOptions(**options))


def request(id: int, *, max_new_tokens: int = 2, **fields: Any) -> GenerationRequest:
    return GenerationRequest(id=id, input_ids=(1,), max_new_tokens=max_new_tokens, **fields)


def sent(folder: Path, rank: int, *, config: Any = None) -> str:
    """Write a file with an adapter of this rank, as the model writes it for the worker."""
    weights, rows = encode_adapter(make_adapter(SITES, ["q_proj"], rank=rank))
    folder.mkdir(exist_ok=True)
    file = folder / f"{len(list(folder.iterdir()))}"
    with file.open("wb") as opened:
        np.save(opened, weights)
        np.save(opened, rows if config is None else np.array(config, np.int32))
    return str(file)


def finish(engine: LoraEngine) -> dict[int, Any]:
    """Run all steps; return request id -> tokens or error."""
    return outcomes(run(engine))


def run(engine: LoraEngine) -> list[SequenceUpdate]:
    updates: list[SequenceUpdate] = []
    while engine.has_work():
        updates += engine.step()
    return updates


def outcomes(updates: list[SequenceUpdate]) -> dict[int, Any]:
    results: dict[int, Any] = defaultdict(list)
    for update in updates:
        if update.error is None:
            results[update.request_id] += update.token_ids
        else:
            results[update.request_id] = update.error
    return dict(results)


def test_each_request_runs_with_its_adapter(tmp_path: Path, load: Loader) -> None:
    engine = make(load)
    engine.submit(request(1))
    engine.submit(request(2, lora_task_id=7, lora_file=sent(tmp_path, 1)))
    engine.submit(request(3, lora_task_id=8, lora_file=sent(tmp_path, 2)))
    engine.submit(request(4, lora_task_id=7))
    assert finish(engine) == {1: [0, 0], 2: [1, 1], 3: [2, 2], 4: [1, 1]}
    assert (sorted(load.loaded), list(tmp_path.iterdir())) == ([1, 2], [])


def test_other_requests_continue_while_an_adapter_loads(tmp_path: Path, load: Loader) -> None:
    load.gate.clear()
    engine = make(load)
    engine.submit(request(1, lora_task_id=7, lora_file=sent(tmp_path, 1)))
    engine.submit(request(2, max_new_tokens=5))
    results = [update.request_id for _ in range(8) for update in engine.step()]
    assert results == [2] * 5
    load.gate.set()
    assert finish(engine) == {1: [1, 1]}


def test_a_known_task_id_keeps_its_weights(tmp_path: Path, load: Loader) -> None:
    engine = make(load)
    engine.submit(request(1, lora_task_id=7, lora_file=sent(tmp_path, 1)))
    finish(engine)
    engine.submit(request(2, lora_task_id=7))
    engine.submit(request(3, lora_task_id=7, lora_file=sent(tmp_path, 2)))
    assert finish(engine) == {2: [1, 1], 3: [1, 1]}


def test_an_adapter_is_read_from_a_folder_on_the_server(tmp_path: Path, load: Loader) -> None:
    write_peft(tmp_path / "poet", make_adapter(SITES, rank=2))
    engine = make(load)
    engine.submit(request(1, lora_name="poet-1", lora_file=str(tmp_path / "poet")))
    assert finish(engine) == {1: [2, 2]}
    engine.submit(request(2, lora_name="poet-1", lora_file=str(tmp_path / "poet")))
    assert finish(engine) == {2: [2, 2]}
    assert (load.loaded, sorted(each.name for each in tmp_path.iterdir())) == ([2], ["poet"])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"lora_task_id": 9}, UNKNOWN.format(9)),
        ({"lora_name": "x"}, "no adapter with the lora_name 'x' is available; set "
                             "lora_prefetch_dir to add adapters"),
    ],
)  # fmt: skip
def test_rejects_an_unknown_adapter(load: Loader, fields: Any, why: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        make(load).submit(request(1, **fields))
    assert str(raised.value) == why


def test_bad_weights_fail_their_requests_only(tmp_path: Path, load: Loader) -> None:
    engine = make(load, lora_cache_max_adapter_size=2)
    engine.submit(request(1, lora_task_id=1, lora_file=sent(tmp_path, 3)))
    engine.submit(request(2, lora_task_id=2, lora_file=sent(tmp_path, 1, config=[[1, 9, 1]] * 2)))
    engine.submit(request(3, lora_task_id=3, lora_file=str(tmp_path / "gone")))
    engine.submit(request(4))
    engine.submit(request(5, lora_name="poet", lora_file=str(tmp_path / "gone")))
    updates = run(engine)
    results = outcomes(updates)
    assert {each.request_id for each in updates if each.rejected} == {1, 2, 3, 5}
    assert "a file of the adapter 'poet' is missing" in results[5]
    assert "has rank 3, but this server accepts only ranks from 1 to 2" in results[1]
    assert "lora_config row 0 is for module 1 (attn_q) of layer 9" in results[2]
    assert (results[3], results[4]) == (UNKNOWN.format(3), [0, 0])
    with pytest.raises(InvalidRequest, match="LoRA task 1 not found in cache"):
        engine.submit(request(6, lora_task_id=1))


def test_an_adapter_that_fails_to_load_fails_its_requests(tmp_path: Path, load: Loader) -> None:
    engine = make(load)
    engine.submit(request(1, lora_task_id=1, lora_file=sent(tmp_path, 13)))
    updates = run(engine)
    assert outcomes(updates) == {
        1: "the adapter could not be loaded: no luck; see the server's log"
    }
    assert not updates[0].rejected


def test_errors_of_the_engine_reach_the_request(tmp_path: Path, load: Loader) -> None:
    engine = make(load)
    file = sent(tmp_path, 1)
    engine.submit(request(1, lora_task_id=1, lora_file=file, max_new_tokens=51))
    engine.submit(request(2, lora_task_id=1, seed=13))
    why = "the engine could not accept the request: no luck; see the server's log"
    assert finish(engine) == {1: "too many", 2: why}


def test_the_least_recently_used_adapter_is_unloaded(tmp_path: Path, load: Loader) -> None:
    engine = make(load, max_loras=2)
    for rank in (1, 2):
        engine.submit(request(rank, lora_task_id=rank, lora_file=sent(tmp_path, rank)))
    finish(engine)
    for task in (1, 3, 1, 2):
        file = sent(tmp_path, 3) if task == 3 else None
        engine.submit(request(9, lora_task_id=task, lora_file=file))
        assert finish(engine) == {9: [task, task]}
    assert load.loaded == [1, 2, 3, 2]
    # Unloaded engines are closed, so that their processes, such as the guide check, end.
    assert [each.is_closed for each in load.engines] == [False, True, True, False]


def test_an_adapter_in_constant_use_is_unloaded(tmp_path: Path, load: Loader) -> None:
    engine = make(load, max_loras=1)
    engine.submit(request(1, lora_task_id=1, lora_file=sent(tmp_path, 1)))
    engine.submit(request(2, lora_task_id=2, lora_file=sent(tmp_path, 2)))
    results: dict[int, int] = {}
    for id in range(3, 100_000):
        engine.submit(request(id, lora_task_id=1))
        results |= {update.request_id: update.token_ids[0] for update in engine.step()}
        if 2 in results:
            break
    assert (results[2], load.loaded[:2]) == (2, [1, 2])
    assert set(finish(engine)[id]) == {1}


def test_a_cancelled_request_does_not_wait(tmp_path: Path, load: Loader) -> None:
    load.gate.clear()
    engine = make(load)
    for id in (1, 2):
        engine.submit(request(id, lora_task_id=1, lora_file=sent(tmp_path, 1)))
    engine.cancel(1)
    load.gate.set()
    assert finish(engine) == {2: [1, 1]}
    engine.submit(request(3))
    engine.cancel(3)
    assert not engine.has_work()


def test_sent_adapters_are_evicted_beyond_the_limit(tmp_path: Path, load: Loader) -> None:
    # Two rows of rank 1 with 8 features in and out: 128 bytes each.
    engine = make(load, max_loras=1, lora_cache_host_memory_bytes=300)
    for task in (1, 2, 3, 4):
        engine.submit(request(task, lora_task_id=task, lora_file=sent(tmp_path, 1)))
        assert finish(engine) == {task: [1, 1]}
    with pytest.raises(InvalidRequest, match="LoRA task 1 not found"):
        engine.submit(request(5, lora_task_id=1))
    engine.submit(request(6, lora_task_id=4))
    assert finish(engine) == {6: [1, 1]}


def test_rejects_an_adapter_larger_than_the_memory_limit(tmp_path: Path, load: Loader) -> None:
    engine = make(load, lora_cache_host_memory_bytes=255)
    engine.submit(request(1, lora_task_id=1, lora_file=sent(tmp_path, 2)))
    assert (
        "this server accepts at most 255 bytes (lora_cache_host_memory_bytes)" in finish(engine)[1]
    )


def test_prefetched_adapters_are_found_by_name_and_number(tmp_path: Path, load: Loader) -> None:
    for name, rank in (("poet", 1), ("03", 2), (".hidden", 3)):
        write_peft(tmp_path / name, make_adapter(SITES, rank=rank))
    (tmp_path / "readme").write_text("")
    engine = make(load, lora_prefetch_dir=str(tmp_path), max_loras=1)
    assert load.loaded == [2]
    engine.submit(request(1, lora_name="poet"))
    engine.submit(request(2, lora_task_id=3))
    engine.submit(request(3, lora_name="3"))
    assert finish(engine) == {1: [1, 1], 2: [2, 2], 3: [2, 2]}
    with pytest.raises(InvalidRequest, match="send one of these names: 3, poet"):
        engine.submit(request(4, lora_name="x"))


def test_names_an_invalid_prefetched_adapter(tmp_path: Path, load: Loader) -> None:
    write_peft(tmp_path / "poet", make_adapter(SITES, rank=65))
    with pytest.raises(BadAdapter, match=r"the adapter in .*/poet cannot be served: .*rank 65"):
        make(load, lora_prefetch_dir=str(tmp_path))


def test_names_a_missing_prefetch_folder(tmp_path: Path, load: Loader) -> None:
    with pytest.raises(BadAdapter, match=r"lora_prefetch_dir is .*/no, which is not a folder"):
        make(load, lora_prefetch_dir=str(tmp_path / "no"))


def test_stats_add_up(tmp_path: Path, load: Loader) -> None:
    load.gate.clear()
    engine = make(load)
    engine.submit(request(1))
    engine.submit(request(2, lora_task_id=1, lora_file=sent(tmp_path, 1)))
    waiting = EngineStats(
        active_requests=2, waiting_requests=1, kv_blocks_max=8, tokens_per_block=32, memory_bytes=5
    )
    assert engine.stats() == waiting
    load.gate.set()
    finish(engine)
    assert engine.stats() == EngineStats(kv_blocks_max=16, tokens_per_block=32, memory_bytes=5)
