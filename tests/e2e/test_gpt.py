"""The gpt layout on a real Triton, with the requests of upstream's client programs for it.

The requests are those of tools/gpt and tools/utils/utils.py in
triton-inference-server/tensorrtllm_backend, tags v0.5.0 to v0.8.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.e2e.conftest import Tllm
from tests.e2e.upstream import END_ID, PROMPT, as_tensors

QUESTION = "The capital of France is"
PROMPTS = ["Monday, Tuesday, Wednesday,", "A, B, C, D, E,"]


@pytest.fixture(scope="module")
def gpt(imported: Tllm, source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tllm]:
    """Serve the demo model in the gpt layout."""
    tllm = imported.with_own_home(tmp_path_factory.mktemp("gpt") / "home")
    tllm.done("import", "-m", "demo", "-s", source, "--layout", "gpt")
    started = tllm.start()
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


def infer(tllm: Tllm, model: str, inputs: dict[str, Any]) -> Any:
    with httpclient.InferenceServerClient(tllm.endpoint().http) as client:
        return client.infer(model, as_tensors(inputs, httpclient.InferInput))


def sampling(num_rows: int, integer: Any, *, is_text: bool) -> dict[str, Any]:
    """Return the inputs that upstream's clients always send; `integer` is their integer type."""
    prefix = "" if is_text else "runtime_"
    penalty = "length_penalty" if is_text else "len_penalty"
    values: dict[str, tuple[Any, Any]] = {
        "pad_id": (END_ID, integer),
        "end_id": (END_ID, integer),
        "beam_width": (1, integer),
        "temperature": (1.0, np.float32),
        f"{prefix}top_k": (1, integer),
        f"{prefix}top_p": (0.0, np.float32),
        penalty: (1.0, np.float32),
        "repetition_penalty": (1.0, np.float32),
        "min_length": (1, integer),
        "presence_penalty": (0.0, np.float32),
        "random_seed": (0, np.uint64),
        "output_log_probs": (True, np.bool_),
    }
    return {name: np.full((num_rows, 1), value, dtype) for name, (value, dtype) in values.items()}


def run_models(tllm: Tllm, integer: Any) -> tuple[list[str], list[str]]:
    """Return the texts of the three models in a row and of the ensemble, as end_to_end_test.py."""
    rows = len(PROMPTS)
    queries = np.array([[prompt] for prompt in PROMPTS], object)
    lengths = np.full((rows, 1), 4, integer)
    words = np.array([[""]] * rows, object)
    preprocessed = infer(
        tllm,
        "preprocessing",
        {
            "QUERY": queries,
            "BAD_WORDS_DICT": words,
            "STOP_WORDS_DICT": words,
            "REQUEST_OUTPUT_LEN": lengths,
        },
    )
    core = infer(
        tllm,
        "tensorrt_llm",
        {
            "input_ids": preprocessed.as_numpy("INPUT_ID"),
            "input_lengths": preprocessed.as_numpy("REQUEST_INPUT_LEN"),
            "request_output_len": preprocessed.as_numpy("REQUEST_OUTPUT_LEN"),
            **sampling(rows, integer, is_text=False),
        },
    )
    assert core.as_numpy("log_probs").shape == (rows, 4, 1)
    tokens = {"TOKENS_BATCH": core.as_numpy("output_ids")}
    after = infer(tllm, "postprocessing", tokens).as_numpy("OUTPUT")
    inputs = {"text_input": queries, "max_tokens": lengths, "bad_words": words}
    inputs |= {"stop_words": words, **sampling(rows, integer, is_text=True)}
    ensemble = infer(tllm, "ensemble", inputs).as_numpy("text_output")
    return [each.decode() for each in after], [each.decode() for each in ensemble]


def test_models_in_a_row_return_the_text_of_the_ensemble(gpt: Tllm) -> None:
    after, ensemble = run_models(gpt, np.int32)
    assert after == ensemble
    for text, prompt in zip(after, PROMPTS, strict=True):
        assert text.startswith(prompt) and len(text) > len(prompt)


def test_response_has_the_length_of_prompt_and_request(gpt: Tllm) -> None:
    """client.py cuts off the prompt by its length."""
    inputs = {"input_ids": np.array([PROMPT], np.int32)}
    inputs["input_lengths"] = np.array([[len(PROMPT)]], np.int32)
    inputs["request_output_len"] = np.array([[10]], np.int32)
    result = infer(gpt, "tensorrt_llm", inputs | sampling(1, np.int32, is_text=False))
    assert result.as_numpy("output_ids").shape == (1, 1, len(PROMPT) + 10)
    assert result.as_numpy("output_ids")[0, 0, : len(PROMPT)].tolist() == PROMPT


@pytest.mark.parametrize("options", [(), ("-i", "http"), ("--no-stream",)])
def test_infer_returns_the_text_of_the_inflight_layout(
    gpt: Tllm, served: Tllm, options: tuple[str, ...]
) -> None:
    words = ("infer", QUESTION, "--raw", "--max-tokens", "20")
    assert gpt.done(*words, *options) == served.done(*words)


def test_benchmarks_run(gpt: Tllm) -> None:
    sizes = ("--num-requests=4", "--output-len=3", "--batch-size=2")
    assert "Completed requests" in gpt.done("bench", "identity", *sizes)
    counts = ("--num-requests=4", "--input-mean=9", "--output-mean=3")
    deviations = ("--input-stdev=0", "--output-stdev=0")
    assert "Completed requests" in gpt.done("bench", "token-norm-dist", *counts, *deviations)


def test_unsigned_integers_are_set_for_the_oldest_clients(gpt: Tllm) -> None:
    gpt.done("set", "demo", "integer_data_type=TYPE_UINT32")
    try:
        gpt("stop", "--all")
        started = gpt.start()
        assert started.returncode == 0, started.stdout + started.stderr
        gpt.done("validate", "demo")
        after, ensemble = run_models(gpt, np.uint32)
        assert after == ensemble
        assert gpt.done("infer", QUESTION, "--raw", "--max-tokens", "5")
    finally:
        gpt.done("set", "demo", "integer_data_type=TYPE_INT32")
