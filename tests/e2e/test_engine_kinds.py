"""Behaviour that engines of all kinds have in common, with a real model.

The kind pytorch requires TensorRT-LLM, a GPU and a checkpoint:
TLLM_TEST_CHECKPOINT=/models/llama pytest -m e2e tests/e2e/test_engine_kinds.py
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.openvino_engine import load as load_openvino
from tests.e2e.openvino_engine import run, tokens
from trtllm_serve_cli.runtime.engine import GenerationRequest
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.usefixtures("time_to_compile")

PROMPTS = ("The capital of France is", "Count: one, two, three,", "def add(a, b):")


@dataclass(frozen=True)
class Loaded:
    """An engine, and the tokenizer of its model."""

    engine: Any
    tokenizer: Tokenizer

    def request(self, number: int = 1, text: str = PROMPTS[0], **fields: Any) -> GenerationRequest:
        ids = tuple(self.tokenizer.encode(text))
        return GenerationRequest(number, ids, **{"max_new_tokens": 16, **fields})

    def generate(self, **fields: Any) -> list[int]:
        (updates,) = run(self.engine, self.request(**fields))
        return tokens(updates)


def _load_pytorch(folder: Path) -> Any:
    from trtllm_serve_cli.build.checkpoint_facts import read_text_config
    from trtllm_serve_cli.build.engine_options import EngineOptions
    from trtllm_serve_cli.engine_kinds.pytorch.llm_arguments import plan_llm_arguments
    from trtllm_serve_cli.runtime.engines.engine_arguments import merge_arguments
    from trtllm_serve_cli.runtime.worker.worker_main import load_engine

    version = importlib.metadata.version("tensorrt_llm")
    options = EngineOptions(max_batch_size=16, max_seq_len=1024, max_num_tokens=1024)
    engine_arguments = {
        "model": str(folder),
        "tokenizer": str(folder),
        "guided_decoding_backend": "xgrammar",
        "kv_cache_config": {"max_tokens": 8192},
    }
    config = {
        "llm": merge_arguments(plan_llm_arguments(options, version), engine_arguments),
        "max_seq_len": 1024,
        "vocab_size": int(read_text_config(folder)["vocab_size"]),
        "gpu_device_ids": [],
    }
    return load_engine("pytorch", config)


@pytest.fixture(scope="module", params=["openvino", "pytorch"])
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    if request.param == "openvino":
        imported: Tllm = request.getfixturevalue("imported")
        folder = imported.engine("demo")
        engine = load_openvino(folder)
    else:
        if not importlib.util.find_spec("tensorrt_llm"):
            pytest.skip("needs TensorRT-LLM 1.0 or later, and a GPU")
        if "TLLM_TEST_CHECKPOINT" not in os.environ:
            pytest.skip("needs TLLM_TEST_CHECKPOINT, the folder of a Hugging Face checkpoint")
        folder = Path(os.environ["TLLM_TEST_CHECKPOINT"])
        engine = _load_pytorch(folder)
    yield Loaded(engine, load_tokenizer(folder))
    engine.close()


def test_batched_requests_get_the_same_tokens_as_single_ones(loaded: Loaded) -> None:
    requests = [loaded.request(number, text) for number, text in enumerate(PROMPTS)]
    together = [tokens(updates)[:5] for updates in run(loaded.engine, *requests)]
    assert together == [tokens(run(loaded.engine, each)[0])[:5] for each in requests]


def test_request_without_an_end_token_ends_at_its_length(loaded: Loaded) -> None:
    (updates,) = run(loaded.engine, loaded.request())
    assert (len(tokens(updates)), updates[-1].finish_reason) == (16, "length")
    assert len(updates) > 1


def test_end_token_ends_the_sequence_and_is_not_returned(loaded: Loaded) -> None:
    free = loaded.generate()
    end = free[3]
    (updates,) = run(loaded.engine, loaded.request(end_id=end))
    assert (tokens(updates), updates[-1].finish_reason) == (free[: free.index(end)], "stop")


def test_min_tokens_delays_the_end(loaded: Loaded) -> None:
    end = loaded.generate()[0]
    assert len(loaded.generate(end_id=end, min_tokens=4)) >= 4


def test_stop_word_of_several_tokens_ends_the_sequence(loaded: Loaded) -> None:
    free = loaded.generate()
    (updates,) = run(loaded.engine, loaded.request(stop_words=(tuple(free[2:4]),)))
    stopped = tokens(updates)
    assert (stopped, updates[-1].finish_reason) == (free[: len(stopped)], "stop")
    assert len(stopped) < len(free)


def test_bad_word_is_not_generated(loaded: Loaded) -> None:
    banned = loaded.generate()[0]
    assert banned not in loaded.generate(bad_words=((banned,),))


def test_log_probabilities_are_returned_with_their_tokens(loaded: Loaded) -> None:
    (updates,) = run(loaded.engine, loaded.request(return_log_probs=True))
    log_probs = [log_prob for each in updates for log_prob in each.log_probs]
    assert len(log_probs) == 16 and max(log_probs) <= 0.0
    assert updates[-1].cum_log_prob == pytest.approx(sum(log_probs))


def test_a_seed_makes_a_sample_repeatable(loaded: Loaded) -> None:
    sampled = {"top_p": 0.95, "temperature": 1.5, "seed": 7}
    assert loaded.generate(**sampled) == loaded.generate(**sampled)


def test_several_sequences_all_end(loaded: Loaded) -> None:
    fields = {"num_return_sequences": 3, "top_p": 0.95, "temperature": 1.5, "seed": 7}
    (updates,) = run(loaded.engine, loaded.request(**fields))
    assert [len(tokens(updates, sequence)) for sequence in range(3)] == [16] * 3
    assert sorted(each.sequence_index for each in updates if each.finish_reason) == [0, 1, 2]


def test_text_follows_its_guide(loaded: Loaded) -> None:
    end = loaded.tokenizer.end_id
    ids = loaded.generate(end_id=end, guide_type="regex", guide="[0-9]{3}-[a-c]{4}")
    assert re.fullmatch("[0-9]{3}-[a-c]{4}", loaded.tokenizer.decode(ids))


def test_json_follows_its_schema(loaded: Loaded) -> None:
    guide = json.dumps({"enum": [{"name": "a"}, ["b", True]]})
    end = loaded.tokenizer.end_id
    ids = loaded.generate(end_id=end, guide_type="json_schema", guide=guide, max_new_tokens=32)
    assert json.loads(loaded.tokenizer.decode(ids)) in ({"name": "a"}, ["b", True])


def test_perf_metrics_are_in_order(loaded: Loaded) -> None:
    (updates,) = run(loaded.engine, loaded.request(return_perf_metrics=True))
    perf = updates[-1].perf
    assert perf is not None and perf.kv_cache_alloc_total_blocks > 0
    times = (perf.first_scheduled_time_ns, perf.first_token_time_ns, perf.last_token_time_ns)
    assert sorted(times) == list(times) and times[0] > 0


def test_cancelled_request_does_not_affect_others(loaded: Loaded) -> None:
    kept = loaded.request(1, max_new_tokens=64)
    loaded.engine.submit(loaded.request(2, PROMPTS[1], max_new_tokens=512))
    loaded.engine.submit(kept)
    loaded.engine.step()
    loaded.engine.cancel(2)
    updates = []
    while loaded.engine.has_work():
        updates += loaded.engine.step()
    assert {each.request_id for each in updates} == {1}
    assert updates[-1].finish_reason == "length"
