"""Engines that can generate draft tokens for another engine, and the rendered draft model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.tensorrt_engines import engine_config, tensorrt_engine, write_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import accepts_drafts
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.render import render_files
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

PAGED = {"plugin_config": {"use_paged_context_fmha": True}}
FOR_DRAFTS: dict[str, Any] = {**PAGED, "speculative_decoding_mode": 2, "max_draft_len": 5}


def _render(
    folder: Path,
    target: dict[str, Any] = FOR_DRAFTS,
    draft: dict[str, Any] = PAGED,
    draft_version: str = "1.1.0",
    **parameters: str,
) -> dict[str, Any]:
    """Return the parsed `config.pbtxt` of each model, by model."""
    engine = tensorrt_engine(folder, **target)
    config = engine_config(draft_version, **draft)
    directory = write_engine(folder / "draft", config)
    named = {
        "tokenizer_dir": str(folder / "tokenizer"),
        "draft_engine_dir": str(directory),
        **parameters,
    }
    files = render_files(plan_repository("mine", engine, ServingOptions(parameters=named)))
    return {
        path.split("/")[0]: text_format.Parse(text, model_config_pb2.ModelConfig())
        for path, text in files.items()
        if path.endswith("/config.pbtxt")
    }


def _parameters(config: Any) -> dict[str, str]:
    return {name: each.string_value for name, each in config.parameters.items()}


def test_draft_model_has_its_engine_and_its_own_parameters(tmp_path: Path) -> None:
    models = _render(
        tmp_path,
        draft={**PAGED, "max_batch_size": 4},
        decoupled_mode="false",
        exclude_input_in_output="true",
        gpu_device_ids="0,1",
        draft_gpu_device_ids="2,3",
        kv_cache_free_gpu_mem_fraction="0.7",
        draft_kv_cache_free_gpu_mem_fraction="0.2",
        max_queue_size="9",
    )
    draft, target = models["tensorrt_llm_draft"], models["tensorrt_llm"]
    assert (draft.name, draft.backend, draft.max_batch_size) == (
        "tensorrt_llm_draft", "tensorrtllm", 4,
    )  # fmt: skip
    own = {
        "gpt_model_path": str(tmp_path / "draft"),
        "gpu_device_ids": "2,3",
        "kv_cache_free_gpu_mem_fraction": "0.2",
    }
    assert _parameters(draft) == _parameters(target) | own
    assert not draft.model_transaction_policy.decoupled
    assert draft.dynamic_batching.default_queue_policy.max_queue_size == 9


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "mine"])
def test_text_models_call_the_draft_model(tmp_path: Path, model: str) -> None:
    parameters = _parameters(_render(tmp_path)[model])
    assert parameters["tensorrt_llm_draft_model_name"] == "tensorrt_llm_draft"


def test_parameters_of_the_draft_model_require_its_engine(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        _render(tmp_path, draft_engine_dir="", draft_gpu_device_ids="1")
    assert str(raised.value) == (
        "draft_gpu_device_ids requires a draft model.\n"
        "Why: draft_engine_dir is not set\n"
        "Next: add --draft NAME, or omit the parameter"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"draft_version": "1.0.0"},
         "the draft engine was built with TensorRT-LLM 1.0.0, but the target engine was built "
         "with 1.1.0"),
        ({"target": PAGED},
         "the target engine was built without draft_tokens_external, so it cannot verify draft "
         "tokens"),
        ({"target": {"speculative_decoding_mode": 2}},
         "the target engine was built without use_paged_context_fmha, which is required to verify "
         "draft tokens"),
        ({"enable_kv_cache_reuse": "false"},
         "enable_kv_cache_reuse is false, but verifying draft tokens requires the KV cache of "
         "earlier steps"),
    ],
    ids=["version", "mode", "paged context", "KV cache reuse"],
)  # fmt: skip
def test_engines_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadInput) as raised:
        _render(tmp_path, **changes)
    assert (raised.value.what, raised.value.why) == (
        f"The engine in {tmp_path / 'draft'} cannot generate draft tokens for mine.", why,
    )  # fmt: skip


def test_vocabularies_must_have_the_same_size_if_the_tokens_are_unknown(tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path, **FOR_DRAFTS)
    config = engine_config(**PAGED)
    config["pretrained_config"]["vocab_size"] = 5
    draft = write_engine(tmp_path / "draft", config)
    parameters = {"tokenizer_dir": str(tmp_path / "tokenizer"), "draft_engine_dir": str(draft)}
    options = ServingOptions(parameters=parameters)
    with pytest.raises(BadInput) as raised:
        plan_repository("mine", engine, options)
    assert raised.value.why == (
        "the draft engine's vocabulary has 5 tokens, but the target engine's vocabulary has 32000"
    )
    # With the same tokens, only the padding of the vocabularies differs.
    for folder in (tmp_path / "tokenizer", draft / "tokenizer"):
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    assert len(plan_repository("mine", engine, options).models) == 7
    (draft / "tokenizer" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"b": 0}}}))
    with pytest.raises(BadInput, match="cannot generate draft tokens") as raised:
        plan_repository("mine", engine, options)
    assert raised.value.why == "the tokenizers of the two models have different vocabularies"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        ({}, False),
        ({"max_draft_len": 0}, False),
        ({"max_draft_len": 5}, True),
        ({"speculative_decoding_mode": 1, "max_draft_len": 5}, False),
        ({"speculative_decoding_mode": 2}, True),
        ({"speculative_decoding_mode": 4, "max_draft_len": 63}, False),
    ],
)
def test_mode_of_the_build_decides_whether_drafts_are_accepted(
    build: dict[str, Any], expected: bool
) -> None:
    assert accepts_drafts(build) is expected
