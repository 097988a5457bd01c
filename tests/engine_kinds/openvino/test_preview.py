"""The description of an OpenVINO engine before it is built."""

from __future__ import annotations

import pytest

from tests.samples import configs
from trtllm_serve_cli.engine_kinds.cpu_memory import EngineSize
from trtllm_serve_cli.engine_kinds.openvino.preview import preview_engine
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.sizing.facts import ModelFacts
from trtllm_serve_cli.sizing.shape import parse_shape

SMOLLM2_135M = configs.LLAMA_2_7B | {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "max_position_embeddings": 8192,
    "tie_word_embeddings": True, "vocab_size": 49152,
}  # fmt: skip


def facts(config: dict[str, object], weight_bytes: int | None = None) -> ModelFacts:
    return ModelFacts("local:/m", parse_shape(config), weight_bytes)


def test_cache_has_the_shape_of_the_built_engine() -> None:
    """`read_engine_size` reads 180 heads and 11,520 values from the engine of this model."""
    engine = preview_engine(facts(SMOLLM2_135M, 90_000_000), "gguf", None)
    assert engine.details == EngineSize(94_500_000, kv_heads=180, kv_values=11_520)
    assert (engine.weights, engine.max_position_embeddings) == ("as in the GGUF", 8192)


@pytest.mark.parametrize(
    ("quantization", "weights", "num_bytes"),
    [(None, "int8", 8_833_287_372), ("int4", "int4", 5_621_182_873), ("none", "none", None)],
)
def test_weights_have_the_size_of_their_format(
    quantization: str | None, weights: str, num_bytes: int | None
) -> None:
    # The size of the checkpoint is not used, because its weights may have 32 bits.
    engine = preview_engine(facts(configs.LLAMA_3_1_8B, 1), "hf", quantization)
    assert engine.weights == weights
    assert engine.details.weight_bytes == num_bytes or num_bytes is None


def test_size_of_latent_attention_is_unknown() -> None:
    assert preview_engine(facts(configs.DEEPSEEK_V3), "hf", None).details is None


@pytest.mark.parametrize(
    ("config", "quantization", "what"),
    [
        (configs.LLAMA_2_7B, "fp8", "does not support --quantization fp8"),
        (configs.LLAMA_2_7B | {"max_position_embeddings": None}, None, "context length"),
    ],
)
def test_model_without_an_engine_is_refused(
    config: dict[str, object], quantization: str | None, what: str
) -> None:
    with pytest.raises(BadInput, match=what):
        preview_engine(facts(config), "hf", quantization)
