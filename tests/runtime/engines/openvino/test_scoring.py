"""Test the scores of prompts with a model whose logits depend only on the latest token."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openvino", reason="pip install 'trtllm-serve-cli[embedded]'")

from trtllm_serve_cli.runtime.engine import GenerationRequest, InvalidRequest
from trtllm_serve_cli.runtime.engines.openvino import scoring
from trtllm_serve_cli.runtime.engines.openvino.scoring import check_scorable, score

VOCAB_SIZE = 6
_LOGITS = np.random.default_rng(1).normal(size=(VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)
_LOG_PROBS = _LOGITS - np.log(np.exp(_LOGITS).sum(axis=1, keepdims=True))


class BigramModel:
    """An infer request that remembers how many tokens it has seen since its last reset."""

    def __init__(self, *names: str) -> None:
        self._names = names or ("input_ids", "attention_mask", "position_ids", "beam_idx")
        self.chunks: list[int] = []
        self._logits: Any = None

    def get_compiled_model(self) -> Any:
        inputs = [SimpleNamespace(get_any_name=lambda name=name: name) for name in self._names]
        return SimpleNamespace(inputs=inputs)

    def reset_state(self) -> None:
        self.chunks = []

    def infer(self, inputs: dict[str, Any]) -> None:
        assert set(inputs) == set(self._names)
        (ids,) = inputs["input_ids"]
        seen = sum(self.chunks)
        self.chunks.append(len(ids))
        assert inputs["attention_mask"].shape == (1, seen + len(ids))
        if "position_ids" in inputs:
            assert inputs["position_ids"].tolist() == [list(range(seen, seen + len(ids)))]
        self._logits = _LOGITS[ids][np.newaxis]

    def get_tensor(self, name: str) -> Any:
        assert name == "logits"
        return SimpleNamespace(data=self._logits)


def request(tokens: list[int], **fields: Any) -> GenerationRequest:
    options = {"max_new_tokens": 1, "return_prompt_log_probs": True, "return_log_probs": True}
    return GenerationRequest(1, tuple(tokens), **{**options, **fields})


@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(0, 8),
)
def test_scores_do_not_depend_on_the_chunks(tokens: list[int], size: int, count: int) -> None:
    model = BigramModel()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "CHUNK_SIZE", size)
        update = score(model, request(tokens, num_top_log_probs=count))
    assert max(model.chunks) <= size
    assert update.prompt is not None
    expected = [_LOG_PROBS[pair] for pair in pairwise(tokens)]
    assert update.prompt.log_probs == pytest.approx(expected, abs=1e-5)
    likely = np.argsort(-_LOG_PROBS, axis=1)[:, :count]
    rows = [[token for token, _ in row] for row in update.prompt.top_log_probs]
    assert rows == ([likely[token].tolist() for token in tokens[:-1]] if count else [])
    best = int(_LOG_PROBS[tokens[-1]].argmax())
    assert (update.token_ids, update.finish_reason) == ((best,), "length")
    assert update.log_probs == pytest.approx([_LOG_PROBS[tokens[-1], best]], abs=1e-5)
    if count:
        assert [token for token, _ in update.top_log_probs[0]] == likely[tokens[-1]].tolist()


def test_the_end_token_is_not_returned() -> None:
    best = int(_LOG_PROBS[2].argmax())
    update = score(BigramModel(), request([1, 2], end_id=best, num_top_log_probs=1))
    assert (update.token_ids, update.finish_reason) == ((), "stop")
    assert (update.log_probs, update.top_log_probs) == ((), ())


def test_a_model_may_lack_positions() -> None:
    update = score(BigramModel("input_ids", "attention_mask", "beam_idx"), request([1, 2]))
    assert update.prompt is not None
    assert len(update.prompt.log_probs) == 1


def test_unknown_inputs_are_an_error() -> None:
    with pytest.raises(ValueError, match="the model's input pixels is not supported"):
        score(BigramModel("input_ids", "pixels"), request([1, 2]))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_new_tokens": 2}, "max_tokens above 1"),
        ({"num_return_sequences": 2}, "n above 1"),
        ({"top_p": 0.5}, "a temperature above 0"),
        ({"guide_type": "json"}, "guided_decoding_guide_type"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"bad_words": ((1,),)}, "bad_words"),
    ],
)
def test_only_the_most_likely_token_can_be_scored(fields: dict[str, Any], name: str) -> None:
    check_scorable(request([1], temperature=0.0, repetition_penalty=1.0))
    with pytest.raises(InvalidRequest, match=f"does not support {name} with"):
        check_scorable(request([1], **fields))
