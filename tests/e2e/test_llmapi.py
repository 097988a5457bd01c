"""The llmapi layout on a real Triton, compared with the inflight layout."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.shallow import REPETITION_PENALTY, find_last_word

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def llmapi(imported: Tllm, source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tllm]:
    """Serve the demo model in the llmapi layout."""
    tllm = imported.with_own_home(tmp_path_factory.mktemp("llmapi") / "home")
    tllm.done("import", "-m", "demo", "-s", source, "--layout", "llmapi")
    started = tllm.start()
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


def post(tllm: Tllm, endpoint: str, **body: Any) -> str:
    url = f"http://{tllm.endpoint().http}/v2/models/tensorrt_llm/{endpoint}"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("options", [(), ("-i", "http"), ("--no-stream",)])
def test_text_equals_that_of_the_inflight_layout(
    llmapi: Tllm, served: Tllm, options: tuple[str, ...]
) -> None:
    words = ("infer", PROMPT, "--raw", "--max-tokens", "20")
    assert llmapi.done(*words, *options) == served.done(*words)


@pytest.mark.parametrize("options", [(), ("-i", "http"), ("--no-stream",)])
def test_infer_returns_the_finish_reason(llmapi: Tllm, options: tuple[str, ...]) -> None:
    response = llmapi.done("infer", PROMPT, "--raw", "--max-tokens", "5", "--json", *options)
    assert json.loads(response)["finish_reason"] == "length"


def test_chat_template_is_applied(llmapi: Tllm, served: Tllm) -> None:
    words = ("infer", "What is ML?", "--max-tokens", "20")
    assert llmapi.done(*words) == served.done(*words)


def test_generate_endpoint_returns_the_prompt_and_the_response(llmapi: Tllm, served: Tllm) -> None:
    answer = json.loads(
        post(
            llmapi, "generate", text_input=PROMPT, sampling_param_max_tokens=3,
            return_finish_reason=True, sampling_param_return_perf_metrics=True,
        )
    )  # fmt: skip
    response = served.done("infer", PROMPT, "--raw", "--max-tokens", "3").removesuffix("\n")
    assert answer["text_output"] == PROMPT + response
    assert answer["finish_reason"] == "length"
    assert answer["last_token_time_ns"] > answer["first_token_time_ns"] > 0


def test_stream_ends_before_the_stop_word(llmapi: Tllm) -> None:
    def generate(**options: Any) -> tuple[str, Any]:
        """Generate text whose words differ. Return the text and the stop reason."""
        stream = post(
            llmapi, "generate_stream", text_input="Count: one, two, three,", streaming=True,
            sampling_param_max_tokens=30, sampling_param_repetition_penalty=REPETITION_PENALTY,
            return_stop_reason=True, **options,
        )  # fmt: skip
        events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
        return "".join(event["text_output"] for event in events), events[-1]["stop_reason"]

    text, _ = generate()
    word = f" {find_last_word(text)}"
    assert generate(sampling_param_stop=[word]) == (text[: text.index(word)], word)


def test_unsupported_option_of_the_layout_is_reported(llmapi: Tllm) -> None:
    result = llmapi("infer", PROMPT, "--beam-width", "2")
    assert result.returncode == 3
    assert "tensorrt_llm does not support --beam-width" in result.stderr
