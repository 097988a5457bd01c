"""Engines that were there before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.build.samples import GGUF
from tests.build.tensorrt_files import CHAT_TEMPLATE, tensorrt_engine, write_tokenizer
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt_engine import read_tensorrt_build
from trtllm_serve_cli.engine_kinds.served_checkpoint import describe_pytorch, describe_vllm
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sources.checkpoint import Checkpoint


def test_tensorrt_engine_compared_whole(tmp_path: Path) -> None:
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
        tensorrt=read_tensorrt_build(tmp_path / "engine"),
    )


def checkpoint(folder: Path, **config: object) -> Checkpoint:
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(folder, "hf", f"local:{folder}", None, "LlamaForCausalLM", 1_000_000)


def test_checkpoint_for_vllm_is_its_own_engine(tmp_path: Path) -> None:
    engine = describe_vllm(
        "mine",
        checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512, torch_dtype="bfloat16"),
        EngineOptions(tp=2),
    )
    assert (engine.path, engine.kind, engine.weights) == (tmp_path, "vllm", "bfloat16")
    assert engine.llm_arguments == {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}
    assert (engine.vocab_size, engine.max_position_embeddings, engine.adds_bos) == (7, 512, True)


def test_gguf_file_is_refused_for_vllm() -> None:
    with pytest.raises(BadInput, match="The engine kind vllm needs a Hugging Face checkpoint"):
        describe_vllm("mine", GGUF, EngineOptions())


def test_checkpoint_without_a_vocabulary_is_refused_for_vllm(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not describe a language model"):
        describe_vllm("mine", checkpoint(tmp_path, max_position_embeddings=512), EngineOptions())


def test_checkpoint_for_the_llm_api_has_its_arguments(tmp_path: Path) -> None:
    there = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512, torch_dtype="bfloat16")
    engine = describe_pytorch("mine", there, EngineOptions(tp=2), "1.2.0", trust_remote_code=True)
    assert (engine.path, engine.kind, engine.weights) == (tmp_path, "pytorch", "bfloat16")
    assert engine.llm_arguments == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "trust_remote_code": True,
        "sampler_type": "TRTLLMSampler",
        "cuda_graph_config": {"enable_padding": True},
    }


@pytest.mark.parametrize(
    ("file", "facts"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}),
        (
            "config.json",
            {
                "quantization_config": {"quant_method": "fp8"},
                "vocab_size": 7,
                "max_position_embeddings": 512,
            },
        ),
    ],
)
def test_quantised_checkpoint_is_served_as_it_is(
    tmp_path: Path, file: str, facts: dict[str, object]
) -> None:
    there = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512)
    (tmp_path / file).write_text(json.dumps(facts))
    engine = describe_pytorch("mine", there, EngineOptions(quantization="fp8"), "1.2.0")
    assert engine.weights == "fp8"
    with pytest.raises(BadInput, match="cannot make the weights nvfp4"):
        describe_pytorch("mine", there, EngineOptions(quantization="nvfp4"), "1.2.0")


def test_other_options_make_another_engine_for_the_llm_api(tmp_path: Path) -> None:
    there = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512)
    engines = [describe_pytorch("mine", there, EngineOptions(tp=tp), "1.2.0") for tp in (1, 2)]
    assert engines[0].fingerprint != engines[1].fingerprint
