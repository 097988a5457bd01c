"""TensorRT engines as trtllm-build writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.samples.tensorrt_engines import (
    CHAT_TEMPLATE,
    engine_config,
    tensorrt_engine,
    write_engine,
    write_legacy_engine,
)
from trtllm_serve_cli.build.engine import ENGINE_FILE, Engine
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import (
    TensorRtBuild,
    fingerprint_of,
    read_tensorrt_build,
)
from trtllm_serve_cli.errors import BadInput


def test_reads_the_build_of_an_engine(tmp_path: Path) -> None:
    assert read_tensorrt_build(write_engine(tmp_path)) == TensorRtBuild(
        version="1.1.0",
        architecture="LlamaForCausalLM",
        dtype="bfloat16",
        logits_dtype="float32",
        quantization="none",
        vocab_size=32000,
        max_position_embeddings=4096,
        max_batch_size=16,
        max_beam_width=2,
        max_seq_len=2048,
        world_size=2,
        max_num_tokens=8192,
    )


def test_length_of_an_older_engine_is_the_sum_of_input_and_output(tmp_path: Path) -> None:
    config = engine_config(max_seq_len=None, max_output_len=500)
    assert read_tensorrt_build(write_engine(tmp_path, config)).max_seq_len == 1524


def test_reads_an_engine_of_build_py(tmp_path: Path) -> None:
    assert read_tensorrt_build(write_legacy_engine(tmp_path)) == TensorRtBuild(
        version="unknown",
        architecture="llama",
        dtype="float16",
        logits_dtype="float32",
        quantization="none",
        vocab_size=32000,
        max_position_embeddings=4096,
        max_batch_size=8,
        max_beam_width=1,
        max_seq_len=2560,
        world_size=2,
        file_name="llama_float16_tp2_rank{}.engine",
    )


def test_version_of_an_older_engine_is_in_the_build_record(tmp_path: Path) -> None:
    write_legacy_engine(tmp_path)
    made = {
        "model_name": "llama", "started_at": 0, "checkpoint": "/checkpoint", "revision": None,
        "facts": {"tools": {"tensorrt_llm": "0.7.1"}}, "steps": [],
    }  # fmt: skip
    (tmp_path / ENGINE_FILE).write_text(json.dumps({"made": made}))
    assert read_tensorrt_build(tmp_path).version == "0.7.1"


@pytest.mark.parametrize(
    ("quant_mode", "weights"),
    [(1, "int4"), (2, "int8"), (2 | 64, "int8"), (2 | 4, "int8_sq"), (256, "fp8"), (64, "none")],
)
def test_quantization_of_an_older_engine(tmp_path: Path, quant_mode: int, weights: str) -> None:
    write_legacy_engine(tmp_path, quant_mode=quant_mode)
    assert read_tensorrt_build(tmp_path).quantization == weights


def test_older_engine_without_a_rank_is_incomplete(tmp_path: Path) -> None:
    write_legacy_engine(tmp_path)
    (tmp_path / "llama_float16_tp2_rank1.engine").unlink()
    with pytest.raises(BadInput) as raised:
        read_tensorrt_build(tmp_path)
    assert "does not contain llama_float16_tp2_rank1.engine" in (raised.value.why or "")


def test_rebuilt_engine_has_another_fingerprint(tmp_path: Path) -> None:
    build = read_tensorrt_build(write_engine(tmp_path))
    before = fingerprint_of(tmp_path, build)
    (tmp_path / "rank1.engine").write_bytes(b"another")
    assert fingerprint_of(tmp_path, build) != before


def test_error_names_a_missing_rank(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        read_tensorrt_build(write_engine(tmp_path, num_ranks=1))
    assert (
        raised.value.why == "the engine has 2 ranks, but the folder does not contain rank1.engine"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "does not contain a TensorRT engine"),
        ("{", "is not a valid TensorRT engine configuration"),
        ("[]", "is not a valid TensorRT engine configuration"),
        ('{"builder_config": {}}', "is not a valid TensorRT engine configuration"),
        (
            '{"pretrained_config": 1, "build_config": {}}',
            "is not a valid TensorRT engine configuration",
        ),
    ],
)
def test_rejects_a_folder_without_an_engine(tmp_path: Path, text: str | None, what: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInput, match=what):
        read_tensorrt_build(tmp_path)


def test_describes_a_tensorrt_engine(tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path)
    assert engine == Engine(
        path=tmp_path / "engine",
        kind="tensorrt",
        model_name="mine",
        source=f"engine:{tmp_path / 'engine'}",
        fingerprint=engine.fingerprint,
        architecture="LlamaForCausalLM",
        weights="bfloat16",
        vocab_size=32000,
        max_position_embeddings=4096,
        chat_template=CHAT_TEMPLATE,
        bos_token="<s>",
        eos_token="</s>",
        adds_bos=True,
        details=read_tensorrt_build(tmp_path / "engine"),
    )
