"""TensorRT engines as trtllm-build writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples.tensorrt_engines import (
    CHAT_TEMPLATE,
    engine_config,
    tensorrt_engine,
    write_engine,
)
from trtllm_serve_cli.build.engine import Engine
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
    )


def test_length_of_an_older_engine_is_the_sum_of_input_and_output(tmp_path: Path) -> None:
    config = engine_config(max_seq_len=None, max_output_len=500)
    assert read_tensorrt_build(write_engine(tmp_path, config)).max_seq_len == 1524


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
        ("{", "is not the configuration of a TensorRT engine"),
        ("[]", "is not the configuration of a TensorRT engine"),
        ('{"builder_config": {}}', "is not the configuration of a TensorRT engine"),
        (
            '{"pretrained_config": 1, "build_config": {}}',
            "is not the configuration of a TensorRT engine",
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
