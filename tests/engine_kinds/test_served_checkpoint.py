"""Checkpoints that are engines themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples.builds import GGUF
from tests.samples.checkpoints import write_files
from tests.samples.configs import GEMMA_3_4B
from tests.samples.embedding_models import embedding_files
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.dispatch import describe_checkpoint
from trtllm_serve_cli.errors import BadInput, SourceError
from trtllm_serve_cli.runtime.embedding_settings import EmbeddingSettings
from trtllm_serve_cli.sources.checkpoint import Checkpoint


def checkpoint(folder: Path, **config: object) -> Checkpoint:
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(folder, "hf", f"local:{folder}", None, "LlamaForCausalLM", 1_000_000)


def describe(kind: str, source: Checkpoint, **options: Any) -> Engine:
    trust_remote_code = options.pop("trust_remote_code", False)
    request = BuildRequest(
        "mine",
        source,
        source.path,
        kind,
        EngineOptions(**options),
        trust_remote_code=trust_remote_code,
    )
    return describe_checkpoint(request, Toolchain("python3", trtllm_version="1.2.0"))


def test_vllm_serves_embedding_models(tmp_path: Path) -> None:
    write_files(tmp_path, embedding_files())
    write_tokenizer(tmp_path)
    source = Checkpoint(tmp_path, "hf", f"local:{tmp_path}", None, "BertModel", 1_000_000)
    engine = describe("vllm", source)
    assert engine.embedding == EmbeddingSettings(8, is_normalized=True)
    assert (engine.max_position_embeddings, engine.vocab_size) == (32, 100)
    with pytest.raises(BadInput, match="pytorch engine kind does not compute embeddings"):
        describe("pytorch", source)


def test_vllm_serves_the_checkpoint_as_the_engine(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512, torch_dtype="bfloat16")
    engine = describe("vllm", source, tp=2)
    assert (engine.path, engine.kind, engine.weights) == (tmp_path, "vllm", "bfloat16")
    assert engine.llm_arguments == {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}
    assert (engine.vocab_size, engine.max_position_embeddings, engine.adds_bos) == (7, 512, True)


def test_vllm_rejects_a_gguf_file() -> None:
    with pytest.raises(BadInput, match="The vllm engine kind requires a Hugging Face checkpoint"):
        describe("vllm", GGUF)


def test_vllm_rejects_a_checkpoint_without_a_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not describe a language model"):
        describe("vllm", checkpoint(tmp_path, max_position_embeddings=512))


@pytest.mark.parametrize("kind", ["vllm", "pytorch"])
def test_config_that_omits_default_values_is_described(tmp_path: Path, kind: str) -> None:
    engine = describe(kind, checkpoint(tmp_path, **GEMMA_3_4B))
    assert (engine.vocab_size, engine.max_position_embeddings) == (262208, 131072)


def test_rope_scaling_extends_the_context_of_vllm(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    source = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512, rope_scaling=scaling)
    lengths = [describe(kind, source).max_position_embeddings for kind in ("vllm", "pytorch")]
    assert lengths == [2048, 512]


@pytest.mark.parametrize(
    "config",
    [
        {"max_position_embeddings": float("inf")},
        {"max_position_embeddings": 8, "rope_scaling": [4.0]},
        {"max_position_embeddings": 8, "rope_scaling": {"factor": float("inf")}},
    ],
)
def test_context_length_that_is_not_a_number_is_an_error(tmp_path: Path, config: Any) -> None:
    with pytest.raises(BadInput, match="does not describe a language model"):
        describe("vllm", checkpoint(tmp_path, vocab_size=7, **config))


def test_checkpoint_for_the_llm_api_has_its_arguments(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512, torch_dtype="bfloat16")
    engine = describe("pytorch", source, tp=2, trust_remote_code=True)
    assert (engine.path, engine.kind, engine.weights) == (tmp_path, "pytorch", "bfloat16")
    assert engine.details == "1.2.0"
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
def test_quantized_checkpoint_keeps_its_weights(
    tmp_path: Path, file: str, facts: dict[str, object]
) -> None:
    source = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512)
    (tmp_path / file).write_text(json.dumps(facts))
    engine = describe("pytorch", source, quantization="fp8")
    assert engine.weights == "fp8"
    with pytest.raises(BadInput, match="cannot serve this checkpoint with --quantization nvfp4"):
        describe("pytorch", source, quantization="nvfp4")


def test_pytorch_rejects_a_quantization_that_it_cannot_load(tmp_path: Path) -> None:
    source = checkpoint(
        tmp_path,
        vocab_size=7,
        max_position_embeddings=512,
        quantization_config={"quant_method": "awq", "bits": 4},
    )
    assert describe("vllm", source).weights == "int4_awq"
    with pytest.raises(BadInput) as raised:
        describe("pytorch", source)
    assert str(raised.value) == (
        "The pytorch engine kind cannot serve awq checkpoints.\n"
        "Why: TensorRT-LLM's PyTorch backend supports only checkpoints that NVIDIA ModelOpt has "
        "quantized, and the quantization methods compressed-tensors, fp8, mxfp4, mxfp8 and nvfp4\n"
        "Next: use a checkpoint from NVIDIA's organization on Hugging Face or one that is not "
        "quantized, or choose --engine vllm"
    )
    facts = {"quantization": {"quant_algo": "W4A16_AWQ"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(facts))
    assert describe("pytorch", source).weights == "int4_awq"


@pytest.mark.parametrize("content", ["", "[1, 2]"], ids=["empty", "list"])
def test_broken_record_of_the_weights_is_an_error(tmp_path: Path, content: str) -> None:
    source = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512)
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(SourceError, match=r"hf_quant_config.json cannot be used"):
        describe("pytorch", source)


def test_fingerprint_depends_on_options(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, vocab_size=7, max_position_embeddings=512)
    engines = [describe("pytorch", source, tp=tp) for tp in (1, 2)]
    assert engines[0].fingerprint != engines[1].fingerprint
