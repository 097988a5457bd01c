from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.samples.bench_results import make_result
from trtllm_serve_cli.bench.report.compare import find_differences
from trtllm_serve_cli.bench.report.result_json import to_json
from trtllm_serve_cli.bench.workloads.dataset import (
    Dataset,
    Entry,
    Lengths,
    as_text,
    read_entries,
    tokenize,
)
from trtllm_serve_cli.errors import BadInput, TllmError


class Words:
    """A tokenizer that maps each word to its length, and adds 98 at the start of a prompt."""

    end_id = 99

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [98] * add_special_tokens + [len(word) for word in text.split()]


UPSTREAM = {"input": "a bc def", "instruction": "do it", "output": "well done you"}
SHAREGPT = {
    "id": "1",
    "conversations": [
        {"from": "system", "value": "be kind"},
        {"from": "human", "value": "hello there you"},
        {"from": "gpt", "value": "hi you"},
    ],
}
MESSAGES = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a b"}]}
LINE = {"prompt": "one two", "output_length": 7}
LENGTHS_ONLY = {"input_length": 5, "output_length": 3}


def _read(tmp_path: Path, *values: object, lines: bool = False) -> str:
    file = tmp_path / "data"
    text = "\n".join(map(json.dumps, values)) if lines else json.dumps(values, indent=1)
    file.write_text(text)
    return str(file)


def _draw(dataset: Dataset, num_requests: int = 1) -> list[tuple[list[int], int]]:
    specs = dataset.draw(num_requests, 50, np.random.default_rng(0))
    return [(spec.input_ids.tolist(), spec.num_output_tokens) for spec in specs]


@pytest.mark.parametrize(
    ("value", "ids", "num_output_tokens"),
    [
        (UPSTREAM, [98, 1, 2, 3, 2, 2], 3),
        (SHAREGPT, [98, 5, 5, 3], 2),
        (MESSAGES, [98, 1], 2),
        (LINE, [98, 3, 3], 7),
    ],
    ids=["upstream", "ShareGPT", "messages", "JSONL"],
)
@pytest.mark.parametrize("lines", [False, True], ids=["array", "lines"])
def test_every_format_has_ids_and_a_length(
    tmp_path: Path, value: object, ids: list[int], num_output_tokens: int, lines: bool
) -> None:
    entries = read_entries(_read(tmp_path, value, lines=lines))
    assert _draw(tokenize("d", entries, Words(), Lengths())) == [(ids, num_output_tokens)]


def test_each_text_is_encoded_once() -> None:
    encoded: list[str] = []

    class Recording(Words):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            encoded.append(text)
            return super().encode(text, add_special_tokens=add_special_tokens)

    tokenize("d", [Entry("x", "a prompt", answer="an answer")], Recording(), Lengths())
    assert encoded == ["a prompt", "an answer"]


def test_output_length_can_use_upstreams_word_count(tmp_path: Path) -> None:
    entries = read_entries(_read(tmp_path, UPSTREAM))
    dataset = tokenize("d", entries, Words(), Lengths(tokens_per_word=1.3))
    assert _draw(dataset)[0][1] == int(3 * 1.3)


def test_entries_with_only_lengths_have_random_ids(tmp_path: Path) -> None:
    entries = read_entries(_read(tmp_path, LENGTHS_ONLY, lines=True))
    ((ids, num_output_tokens),) = _draw(tokenize("d", entries, None, Lengths()))
    assert (len(ids), max(ids) < 50, num_output_tokens) == (5, True, 3)


def test_data_set_restarts_at_its_end(tmp_path: Path) -> None:
    dataset = tokenize("d", read_entries(_read(tmp_path, LINE, UPSTREAM)), Words(), Lengths())
    drawn = _draw(dataset, 5)
    assert (dataset.num_available, drawn[0], drawn[1]) == (2, drawn[2], drawn[3])


@pytest.mark.parametrize("ignores_eos", [False, True])
def test_end_id_is_sent_unless_lengths_are_exact(tmp_path: Path, ignores_eos: bool) -> None:
    entries = read_entries(_read(tmp_path, LINE))
    dataset = tokenize("d", entries, Words(), Lengths(ignores_eos=ignores_eos))
    (spec,) = dataset.draw(1, 50, np.random.default_rng(0))
    assert spec.end_id == (None if ignores_eos else 99)


def test_longer_prompts_are_skipped_and_counted(tmp_path: Path) -> None:
    entries = read_entries(_read(tmp_path, LINE, UPSTREAM))
    dataset = tokenize("d", entries, Words(), Lengths(max_input_tokens=3))
    assert (dataset.num_available, dataset.num_left_out) == (1, 1)


@pytest.mark.parametrize(
    ("lengths", "name"),
    [
        (Lengths(num_output_tokens=9), "num_output_tokens"),
        (Lengths(tokens_per_word=1.3), "tokens_per_word"),
        (Lengths(max_input_tokens=100), "max_input_tokens"),
        (Lengths(ignores_eos=False), "ignores_eos"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_different_lengths_are_a_different_workload(
    tmp_path: Path, lengths: Lengths, name: str
) -> None:
    entries = read_entries(_read(tmp_path, UPSTREAM))
    one, other = (tokenize("d", entries, Words(), each) for each in (Lengths(), lengths))
    assert _differences(one, other) == [f"workload.{name}"]


def test_different_contents_are_a_different_workload(tmp_path: Path) -> None:
    reads = [read_entries(_read(tmp_path, line)) for line in (UPSTREAM, LINE)]
    one, other = (as_text("d", entries, Lengths()) for entries in reads)
    assert _differences(one, other) == ["workload.digest"]
    (tmp_path / "elsewhere").mkdir()
    again = read_entries(_read(tmp_path / "elsewhere", UPSTREAM))
    assert _differences(one, as_text("d", again, Lengths())) == []


def _differences(one: Dataset, other: Dataset) -> list[str]:
    a, b = (to_json(make_result(workload=each)) for each in (one, other))
    found = list(find_differences(a, b))
    assert all(difference.is_question for difference in found)
    return [difference.what for difference in found]


def test_text_is_sent_unchanged(tmp_path: Path) -> None:
    dataset = as_text("d", read_entries(_read(tmp_path, UPSTREAM)), Lengths())
    (spec,) = dataset.draw(1, 50, np.random.default_rng(0))
    assert (spec.text, spec.num_output_tokens) == ("a bc def do it", int(3 * 1.3))


@pytest.mark.parametrize(
    "conversation",
    [
        [],
        [{"from": "human", "value": "a"}],
        [{"from": "gpt", "value": "a"}],
        [{"from": "gpt", "value": "a"}, {"from": "human", "value": "b"}],
    ],
    ids=["empty", "no answer", "no question", "question last"],
)
def test_conversations_without_an_answer_are_skipped(
    tmp_path: Path, conversation: list[dict[str, str]]
) -> None:
    entries = read_entries(_read(tmp_path, SHAREGPT, {"conversations": conversation}))
    for dataset in (tokenize("d", entries, Words(), Lengths()), as_text("d", entries, Lengths())):
        assert (dataset.num_available, dataset.num_left_out) == (1, 1)


def test_empty_prompts_are_skipped(tmp_path: Path) -> None:
    entries = read_entries(_read(tmp_path, LINE, {"prompt": "", "output_length": 7}))
    for dataset in (tokenize("d", entries, Words(), Lengths()), as_text("d", entries, Lengths())):
        assert (dataset.num_available, dataset.num_left_out) == (1, 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"input": "a", "instruction": "b"}, "output field is missing"),
        ({"prompt": 3, "output_length": 1}, "must be a string"),
        ({"prompt": "a", "output_length": 0}, "a positive integer"),
        ({"nothing": 1}, "prompt or text or text_input field is missing (fields: nothing)"),
        ({"conversations": "a"}, "not a list of objects"),
        ({"conversations": [{"from": "human"}, {"from": "gpt"}]}, "a message without text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_entry_is_rejected_with_file_and_line(
    tmp_path: Path, value: object, words: str
) -> None:
    source = _read(tmp_path, LINE, value, lines=True)
    with pytest.raises(BadInput) as refused:
        read_entries(source)
    assert refused.value.what == f"The entry at {source}:2 is invalid."
    assert words in refused.value.why


def test_entry_without_an_output_length_is_rejected(tmp_path: Path) -> None:
    source = _read(tmp_path, {"prompt": "a"}, lines=True)
    with pytest.raises(BadInput, match=f"{source}:1 does not specify an output length"):
        tokenize("d", read_entries(source), Words(), Lengths())


def test_text_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="without a tokenizer"):
        tokenize("d", read_entries(_read(tmp_path, LINE)), None, Lengths())


def test_data_set_with_only_long_prompts_is_rejected(tmp_path: Path) -> None:
    entries = read_entries(_read(tmp_path, LINE))
    with pytest.raises(BadInput, match="does not contain a usable prompt") as refused:
        tokenize("d", entries, Words(), Lengths(max_input_tokens=1))
    assert "longer than --max-input-len" in refused.value.why
    with pytest.raises(BadInput, match="does not contain a usable prompt") as refused:
        as_text("d", [Entry("x:1", "", num_output_tokens=1)], Lengths())
    assert refused.value.why == "every prompt is empty or has no answer"
    assert refused.value.next_step == "pass another data set"


def test_empty_data_set_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is empty"):
        read_entries(_read(tmp_path))


def test_hub_data_set_reports_the_missing_package_or_name() -> None:
    with pytest.raises(TllmError, match=r"`datasets` package is not installed|could not be loaded"):
        read_entries("hf:no-such-user/no-such-data-set")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("Unknown split.\nUse train."), "Unknown split."),
        (ValueError("\nUnknown split."), "Unknown split."),
        (OSError(), "OSError"),
    ],
    ids=["lines", "empty line", "no text"],
)
def test_hub_data_set_reports_the_error_of_the_library(
    monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def load_dataset(name: str, split: str) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(BadInput, match="The data set hf:a/b could not be loaded") as refused:
        read_entries("hf:a/b")
    assert refused.value.why == why
