"""TensorRT engines of every version, served by the emulator of Triton's C++ backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from tests.e2e.conftest import Tllm
from tests.e2e.cpp_backend import EmulatedTllm, import_engine, make_engine, make_tllm
from tests.e2e.upstream import Stop, as_tensors, stop_text_inputs
from tests.e2e.upstream import stream as stream_like_upstream
from tests.ports import free_ports
from tests.waiting import wait_until
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest, Interface
from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.client.token_pipeline import open_token_pipeline
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics

# The versions with different tensors or rules.
VERSIONS = ("0.8.0", "0.9.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0", "0.16.0", "0.19.0", "1.1.0")
# The versions whose servers have all models. The three text models have the same code, so that
# the other versions serve `whole` under its own name only.
COMPLETE = ("0.8.0", "1.1.0")
TEXT_MODELS = ("", "ensemble", "tensorrt_llm_bls")


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(
    version: str, letters: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmulatedTllm]:
    """Serve an engine of one version twice: as the decoupled model `parts`, and as `whole`."""
    folder = tmp_path_factory.mktemp("version")
    tllm = make_tllm(folder)
    engine = make_engine(folder / "engine", version)
    import_engine(tllm, "parts", engine, letters)
    options = ("--param", "decoupled_mode=false")
    unused = () if version in COMPLETE else TEXT_MODELS[1:]
    import_engine(tllm, "whole", engine, letters, *options, unused=unused)
    template = folder / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    started = tllm.start(
        "-m", "parts", "-m", "whole",
        "--openai", f"--openai-port={free_ports(1)[0]}", f"--chat-template={template}",
    )  # fmt: skip
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.fixture(scope="module")
def chat(served: EmulatedTllm) -> Iterator[Callable[..., Any]]:
    """Return a function that sends the message `abc` to the gateway."""
    url = f"{served.status()['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:

        def send(model: str, **fields: Any) -> Any:
            messages: Any = [{"role": "user", "content": "abc"}]
            return client.chat.completions.create(
                model=model, messages=messages, **{"seed": 0, **fields}
            )

        yield send


@pytest.fixture(scope="module")
def endpoint(served: Tllm) -> Endpoint:
    return served.endpoint()


@pytest.mark.parametrize("interface", ["grpc", "http"])
@pytest.mark.parametrize("model", ["parts", "whole"])
def test_response_has_the_new_text_only(
    endpoint: Endpoint, version: str, model: str, interface: Interface
) -> None:
    request = GenerateRequest("abc", max_tokens=7, stream=False)
    roles = TEXT_MODELS if model == "parts" or version in COMPLETE else ("",)
    for role in roles:
        name = f"{model}_{role}" if role else model
        completion = generate(endpoint, name, request, interface)
        counts = (completion.num_input_tokens, completion.num_output_tokens)
        assert (name, completion.text, counts) == (name, "abcabca", (3, 7))


@pytest.mark.parametrize("model", ["parts", "whole"])
def test_token_ids_are_those_of_the_text(endpoint: Endpoint, model: str) -> None:
    pipeline = open_token_pipeline(endpoint, fetch_model_config(endpoint, model))
    completion = generate(pipeline, model, GenerateRequest("abc", max_tokens=7, seed=0))
    a, b, c = completion.input_ids
    assert (completion.text, completion.output_ids) == ("abcabca", ((a, b, c, a, b, c, a),))


@pytest.mark.parametrize("model", ["parts", "whole"])
def test_gateway_returns_the_new_text_only(chat: Callable[..., Any], model: str) -> None:
    answer = chat(model, max_tokens=7)
    assert answer.choices[0].message.content == "abcabca"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 7)
    assert chat(model, max_tokens=7, stop="ca").choices[0].message.content == "ab"


@pytest.mark.parametrize(("model", "has_parts"), [("parts", True), ("whole", False)])
def test_gateway_streams_what_triton_returns(
    chat: Callable[..., Any], model: str, has_parts: bool
) -> None:
    chunks = list(chat(model, max_tokens=5, stream=True))
    texts = [each.choices[0].delta.content for each in chunks]
    texts = [each for each in texts if each]
    # A busy gateway merges the parts that have arrived.
    assert ("".join(texts), len(texts) > 1) == ("abcab", has_parts)
    assert chunks[-1].choices[0].finish_reason == "length"


def count_ended(endpoint: Endpoint) -> float:
    """Return how many requests for `parts` Triton has completed or failed."""
    model = {"model": "parts_tensorrt_llm"}
    snapshot = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    counts = [
        snapshot.value(f"nv_inference_request_{end}", **model) for end in ("success", "failure")
    ]
    return sum(filter(None, counts))


def test_client_that_leaves_the_gateway_ends_its_request(
    chat: Callable[..., Any], endpoint: Endpoint
) -> None:
    """The response would take at least 3.8 s. The gateway sends a second request to stop it."""
    num_before = count_ended(endpoint)
    with chat("parts", max_tokens=1900, stream=True) as chunks:
        next(iter(chunks))
    # Triton may count the request of an earlier test after it has responded.
    wait_until(lambda: count_ended(endpoint) >= num_before + 2, 3)
    assert chat("parts", max_tokens=2).choices[0].message.content == "ab"


@pytest.mark.parametrize("interface", ["grpc", "http"])
def test_streamed_response_arrives_token_by_token(endpoint: Endpoint, interface: Interface) -> None:
    request = GenerateRequest("abc", max_tokens=5)
    pieces = list(stream(endpoint, "parts", request, interface))
    assert [piece.text for piece in pieces] == ["a", "b", "c", "a", "b"]


def test_seed_and_minimum_length_reach_the_engine(endpoint: Endpoint) -> None:
    """The end id is that of "c", which the engine generates third."""
    request = GenerateRequest("abc", max_tokens=6, stream=False, seed=1, min_tokens=5)
    assert generate(endpoint, "whole", request).text == "bcdbcd"


def test_cancelled_stream_ends_on_the_server(endpoint: Endpoint) -> None:
    request = GenerateRequest("abc", max_tokens=200)
    pieces = stream(endpoint, "parts", request)
    next(pieces)
    pieces.close()
    assert generate(endpoint, "parts", GenerateRequest("abc", max_tokens=2)).text == "ab"


@pytest.mark.parametrize("role", TEXT_MODELS)
def test_stop_request_ends_a_stream(endpoint: Endpoint, role: str) -> None:
    """The whole response would take at least 3.8 s."""
    inputs = {
        "text_input": np.array([["abc"]], object),
        "max_tokens": np.array([[1900]], np.int32),
        "stream": np.array([[True]]),
    }
    stop = Stop(stop_text_inputs())
    name = f"parts_{role}" if role else "parts"
    results = stream_like_upstream(endpoint, name, inputs, request_id="1", stop=stop)
    assert [each for each in results if isinstance(each, Exception)] == []
    assert 1 < len(results) < 1900


def test_beams_are_returned_together(endpoint: Endpoint) -> None:
    request = GenerateRequest("abc", max_tokens=3, stream=False, beam_width=2)
    assert generate(endpoint, "whole", request).texts == ("abc", "bcd")


def test_log_probabilities_are_returned(endpoint: Endpoint) -> None:
    request = GenerateRequest("abc", max_tokens=3, stream=False, return_log_probs=True)
    completion = generate(endpoint, "parts", request)
    assert (completion.cum_log_probs, completion.output_log_probs) == ((-1.0,), ((-0.5,) * 3,))


def test_several_sequences_need_version_0_14(endpoint: Endpoint, version: str) -> None:
    request = GenerateRequest("abc", max_tokens=3, stream=False, num_return_sequences=2)
    if _minor(version) >= (0, 14):
        assert generate(endpoint, "parts", request).texts == ("abc", "bcd")
        return
    with pytest.raises(BadInput, match="parts does not support num_return_sequences") as raised:
        generate(endpoint, "parts", request)
    assert raised.value.why == (
        f"the engine was built with TensorRT-LLM {version}, but num_return_sequences was added in "
        "0.14"
    )


def test_several_prompts_per_request_need_version_0_12(endpoint: Endpoint, version: str) -> None:
    import tritonclient.grpc as grpcclient

    inputs = {
        "text_input": np.array([["abc"], ["xy"]], object),
        "max_tokens": np.full((2, 1), 2, np.int32),
    }
    texts: list[str] = []
    failures: list[str] = []

    def receive(result: grpcclient.InferResult, error: Exception | None) -> None:
        if error is not None:
            failures.append(str(error))
        elif (text := result.as_numpy("text_output")) is not None:
            texts.extend(each.decode() for each in text)

    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        client.start_stream(receive)
        client.async_stream_infer("parts", as_tensors(inputs))
        client.stop_stream()
    if _minor(version) >= (0, 12):
        assert (texts, failures) == (["abcab", "xyxy"], [])
    else:
        assert texts == []
        assert "accepts one prompt per request, but the request has 2" in failures[0]


@pytest.mark.parametrize("model", ["parts", "whole"])
def test_benchmark_counts_the_new_tokens_only(
    served: EmulatedTllm, model: str, tmp_path: Path
) -> None:
    options = ("--num-requests=10", "--input-mean=9", "--input-stdev=0", "--output-stdev=0")
    served.done(
        "bench", "token-norm-dist", "-m", model, "--output-mean=5", *options,
        "--output", str(tmp_path / "result"),
    )  # fmt: skip
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    counts = (summary["summary"]["num_completed"], summary["summary"]["num_output_tokens"])
    assert counts == (10, 50)


def test_repository_is_valid(served: EmulatedTllm) -> None:
    findings = json.loads(served.done("validate", "parts", "--json"))
    assert findings == []


def test_reuse_is_refused_for_an_engine_without_paged_context(served: EmulatedTllm) -> None:
    result = served("set", "parts", "enable_kv_cache_reuse=true")
    assert result.returncode == 3
    assert "built without use_paged_context_fmha" in result.stderr


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@pytest.mark.parametrize("model", ["parts", "whole"])
def test_logits_are_written_to_numpy_files(
    served: EmulatedTllm, model: str, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.npy" for name in ("context", "generation")}
    options = [f"--{name}-logits={path}" for name, path in files.items()]
    served.done("infer", "abc", "--raw", "-m", model, "--max-tokens=5", *options)
    context, generation = (np.load(path) for path in files.values())
    assert (context.shape, generation.shape) == ((3, 257), (1, 5, 257))
    assert context.argmax(axis=-1).tolist() == [64, 65, 66]
    assert generation[0].argmax(axis=-1).tolist() == [64, 65, 66, 64, 65]
