"""The vllm layout on a real Triton, compared with the inflight layout."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Tllm

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 20}


@pytest.fixture(scope="module")
def vllm(imported: Tllm, source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tllm]:
    """Serve the demo model in the vllm layout."""
    tllm = imported.with_own_home(tmp_path_factory.mktemp("vllm") / "home")
    tllm.done("import", "-m", "demo", "-s", source, "--layout", "vllm")
    started = tllm.start()
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


def post(tllm: Tllm, endpoint: str, sampling: Any = GREEDY, **body: Any) -> str:
    url = f"http://{tllm.endpoint().http}/v2/models/demo/{endpoint}"
    body = {"text_input": PROMPT, "sampling_parameters": json.dumps(sampling), **body}
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("options", [(), ("-i", "http"), ("--no-stream",)])
def test_infer_returns_the_text_of_the_inflight_layout(
    vllm: Tllm, served: Tllm, options: tuple[str, ...]
) -> None:
    words = ("infer", PROMPT, "--raw", "--max-tokens", "20")
    assert vllm.done(*words, "--temperature", "0", *options) == served.done(*words)


@pytest.mark.parametrize("options", [(), ("-i", "http"), ("--no-stream",)])
def test_infer_returns_the_finish_reason(vllm: Tllm, options: tuple[str, ...]) -> None:
    response = vllm.done("infer", PROMPT, "--raw", "--max-tokens", "5", "--json", *options)
    assert json.loads(response)["finish_reason"] == "length"


def test_infer_returns_log_probs(vllm: Tllm, served: Tllm) -> None:
    words = ("infer", PROMPT, "--raw", "--max-tokens", "5", "--logprobs", "--json", "--top-k", "1")
    ours, theirs = json.loads(vllm.done(*words)), json.loads(served.done(*words))
    assert ours["cum_log_probs"] == pytest.approx(theirs["cum_log_probs"], rel=0.01)
    assert ours["output_log_probs"][0] == pytest.approx(theirs["output_log_probs"][0], rel=0.01)


def test_response_contains_the_prompt_unless_it_is_excluded(vllm: Tllm) -> None:
    whole = json.loads(post(vllm, "generate"))["text_output"]
    excluded = json.loads(post(vllm, "generate", exclude_input_in_output=True))["text_output"]
    assert whole == PROMPT + excluded


def test_streamed_response_has_all_additional_outputs(vllm: Tllm) -> None:
    names = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens")
    names += ("num_output_tokens",)
    stream = post(
        vllm,
        "generate_stream",
        GREEDY | {"logprobs": 1},
        stream=True,
        **{f"return_{name}": True for name in names},
    )
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    assert all(set(names) <= event.keys() for event in events)
    text = "".join(event["text_output"] for event in events)
    steps = [step for event in events for step in json.loads(event["logprobs"])]
    decoded = "".join(each["decoded_token"] for step in steps for each in step.values())
    assert (decoded, len(steps)) == (text, 20)
    assert sum(event["num_output_tokens"] for event in events) == 20
    assert [event["finish_reason"] for event in events[-2:]] == ["None", "length"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"image": ["aGk="]}, "openvino engine kind does not support the image input"),
        ({"stream": True, "exclude_input_in_output": False}, "cannot contain the prompt"),
        ({"sampling_parameters": "{"}, "sampling_parameters is not valid JSON"),
    ],
)
def test_unsupported_requests_are_rejected(vllm: Tllm, body: dict[str, Any], why: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        post(vllm, "generate", **body)
    assert why in raised.value.read().decode()


def test_benchmark_runs(vllm: Tllm) -> None:
    sizes = ("--num-requests=4", "--output-tokens=3")
    assert "Completed requests" in vllm.done("bench", "end-to-end", *sizes, "--through", "own")
