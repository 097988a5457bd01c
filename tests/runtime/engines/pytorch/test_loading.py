"""Test how the engine loads `LLM` in different versions of TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.stand_in_engines import EngineLoader, engines_on, request, run
from trtllm_serve_cli.runtime.engine import InvalidRequest


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoader]:
    """Return a function that loads an engine with the given `LLM` arguments."""
    with engines_on(
        "engines.pytorch.engine",
        "PyTorchEngine",
        "tensorrt_llm.llmapi",
        "TLLM_ALLOW_N_GREEDY_DECODING",
        monkeypatch,
    ) as load:
        yield load


@pytest.mark.parametrize("version", ["1.0.0", "1.2.1", "1.3.0rc5", "1.3.0rc25", "1.3.0rc26"])
def test_a_draft_model_loads_in_each_version(
    load: EngineLoader, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("STAND_IN_TRTLLM", version)
    drafter = {"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model": "/d"}
    engine = load(speculative_config=drafter, disable_overlap_scheduler=True)
    config: Any = load.client.args.speculative_config
    assert type(config).__name__ == "DraftTargetDecodingConfig"
    assert len(run(engine, request())) == 3


def test_logs_the_arguments_that_are_ignored(
    load: EngineLoader, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAND_IN_TRTLLM", "1.3.0rc25")
    load(kv_cache_config={"onboard_blocks": True, "sink_token_length": 4})
    onboard, sink = capfd.readouterr().err.splitlines()
    assert "W " in onboard and "kv_cache_onboard_blocks parameter) is omitted" in onboard
    assert "sink_token_length parameter) has no effect in TensorRT-LLM 1.3.0rc25" in sink


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"kv_cache_dtype": "fp8"}, "does not support the arguments kv_cache_dtype; remove these"),
        (
            {"kv_cache_config": {"onboard_blocks": False}},
            r"does not support the arguments kv_cache_config.onboard_blocks \(the kv_cache_onboard",
        ),
        (
            {"speculative_config": {"decoding_type": "Medusa"}},
            "speculative_config.decoding_type is 'Medusa', which is not supported; use one of "
            "Draft_Target, Eagle, Eagle3, MTP, NGram",
        ),
    ],
    ids=str,
)
def test_rejects_arguments_that_the_version_lacks(
    load: EngineLoader, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], why: str
) -> None:
    monkeypatch.setenv("STAND_IN_TRTLLM", "1.3.0rc25")
    with pytest.raises(ValueError, match=why):
        load(**arguments)


def test_rejects_penalties_that_the_sampler_ignores(load: EngineLoader) -> None:
    engine = load(sampler_type="TorchSampler")
    why = "repetition_penalty is not supported by the TorchSampler of TensorRT-LLM 1.2.1"
    with pytest.raises(InvalidRequest, match=why):
        engine.submit(request(repetition_penalty=1.2))
    assert len(run(engine, request())) == 3


def test_late_versions_sample_with_speculative_decoding(
    load: EngineLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TRTLLM", "1.3.0rc26")
    eagle = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "/e"}
    engine = load(speculative_config=eagle | {"enable_penalty": True})
    assert len(run(engine, request(top_p=0.9, repetition_penalty=1.2))) == 3
    with pytest.raises(InvalidRequest, match="bad_words_list is not supported with speculative"):
        engine.submit(request(bad_words=((1,),)))
