"""Draft-model speculative decoding and accumulated text, with the emulator of the C++ backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.e2e.conftest import UNUSED
from tests.e2e.cpp_backend import EmulatedTllm, import_engine, make_engine, make_tllm
from tests.e2e.upstream import as_tensors
from trtllm_serve_cli.client.ask import generate, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import TllmError

# The versions with the oldest and the newest names of inputs, and rules for prompts in outputs.
VERSIONS = ("0.9.0", "1.1.0")
PAGED = {"plugin_config": {"use_paged_context_fmha": True}}
FOR_DRAFTS = {**PAGED, "speculative_decoding_mode": 2, "max_draft_len": 5}
# The draft model generates the tokens of the target model, or each third token is wrong, or all.
MODELS = {"agreeing": 0, "partly": 3, "wrong": 1}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(
    version: str, letters: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmulatedTllm]:
    """Serve a model for each draft model in MODELS, and the model `plain` without one.

    The import checks the repositories before it removes the unused models.
    """
    folder = tmp_path_factory.mktemp("drafts")
    tllm = make_tllm(folder)
    for name, error_period in MODELS.items():
        logged = {"step_log": str(folder / f"{name}.steps")}
        target = make_engine(folder / name, version, emulator=logged, **FOR_DRAFTS)
        draft = make_engine(
            folder / f"{name}-draft", version, emulator={"error_period": error_period}, **PAGED
        )
        import_engine(tllm, f"{name}-draft", draft, letters, unused=UNUSED)
        # Check both kinds of models: those with several responses and those with only one.
        is_decoupled = str(name != "partly").lower()
        import_engine(
            tllm, name, target, letters, "--draft", f"{name}-draft",
            "--param", f"decoupled_mode={is_decoupled}", unused=UNUSED,
        )  # fmt: skip
    plain = make_engine(folder / "plain", version)
    accumulated = ("--param", "accumulate_tokens=true")
    import_engine(tllm, "plain", plain, letters, *accumulated, unused=UNUSED)
    names = (*MODELS, "plain")
    started = tllm.start(*(word for name in names for word in ("-m", name)))
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.fixture(scope="module")
def endpoint(served: EmulatedTllm) -> Endpoint:
    return served.endpoint()


def _count_steps(served: EmulatedTllm, model: str) -> int:
    log = served.home.parent / f"{model}.steps"
    return sum(map(int, log.read_text().split())) if log.exists() else 0


def _drafted(**options: object) -> GenerateRequest:
    values = {"max_tokens": 12, "stream": False, "num_draft_tokens": 4, **options}
    return GenerateRequest("abc", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("uses_logits", [False, True], ids=["tokens", "logits"])
@pytest.mark.parametrize(("model", "num_steps"), [("agreeing", 3), ("partly", 5), ("wrong", 12)])
def test_response_is_that_without_a_draft_model(
    served: EmulatedTllm, endpoint: Endpoint, model: str, num_steps: int, uses_logits: bool
) -> None:
    before = _count_steps(served, model)
    plain = generate(endpoint, model, _drafted(num_draft_tokens=None))
    alone = _count_steps(served, model)
    drafted = generate(endpoint, model, _drafted(use_draft_logits=uses_logits))
    assert (alone - before, _count_steps(served, model) - alone) == (12, num_steps)
    assert (drafted.text, drafted.num_input_tokens, drafted.num_output_tokens) == (
        plain.text, plain.num_input_tokens, plain.num_output_tokens
    ) == ("abcabcabcabc", 3, 12)  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_response_ends_with_a_stop_word_across_two_steps(endpoint: Endpoint, model: str) -> None:
    request = _drafted(stop_words=("cabcab",), num_draft_tokens=3)
    assert generate(endpoint, model, request).text == "abcabcab"


@pytest.mark.parametrize("model", MODELS)
def test_log_probabilities_are_those_of_the_target_model(endpoint: Endpoint, model: str) -> None:
    completion = generate(endpoint, model, _drafted(return_log_probs=True))
    assert completion.output_log_probs == ((-0.5,) * 12,)


def test_accepted_draft_tokens_are_counted(endpoint: Endpoint, version: str) -> None:
    if version == "0.9.0":
        pytest.skip("return_perf_metrics exists since 0.19")
    perf = generate(endpoint, "agreeing", _drafted(return_perf_metrics=True)).perf
    assert (perf["total_draft_tokens"], perf["total_accepted_draft_tokens"]) == (9, 9)
    assert perf["acceptance_rate"] == 1.0


def test_infer_reaches_the_draft_model(served: EmulatedTllm) -> None:
    options = ("--num-draft-tokens=4", "--use-draft-logits", "--max-tokens=6", "--raw")
    assert served.done("infer", "abc", "-m", "agreeing", *options) == "abcabc\n"


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("agreeing", {"stream": True}, "stream cannot be combined with num_draft_tokens"),
        ("agreeing", {"beam_width": 2}, "beam_width is 2, but must be 1 with num_draft_tokens"),
        ("agreeing", {"num_draft_tokens": 9}, "max_draft_len of the engine is 5"),
        ("plain", {}, "num_draft_tokens requires a draft model"),
    ],
)
def test_request_that_cannot_have_drafts_is_rejected(
    endpoint: Endpoint, model: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(TllmError) as raised:
        generate(endpoint, model, _drafted(**options))
    assert message in str(raised.value)


def test_accumulated_responses_contain_the_whole_text_so_far(endpoint: Endpoint) -> None:
    texts: list[str] = []

    def receive(result: grpcclient.InferResult, error: Exception | None) -> None:
        assert error is None
        if (text := result.as_numpy("text_output")) is not None:
            texts.extend(each.decode() for each in text)

    inputs = {
        "text_input": np.array([["abc"]], object),
        "max_tokens": np.array([[4]], np.int32),
        "stream": np.array([[True]]),
    }
    with grpcclient.InferenceServerClient(endpoint.grpc) as client:
        client.start_stream(receive)
        client.async_stream_infer("plain", as_tensors(inputs))
        client.stop_stream()
    assert texts == ["a", "ab", "abc", "abca"]


def test_client_shows_the_new_text_of_accumulated_responses(endpoint: Endpoint) -> None:
    pieces = list(stream(endpoint, "plain", GenerateRequest("abc", max_tokens=4)))
    assert [piece.text for piece in pieces] == ["a", "b", "c", "a"]
