"""Distribution of parameters across GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples import configs
from trtllm_serve_cli.sizing.parallelism import Parallelism, check_parallelism
from trtllm_serve_cli.sizing.parameters import count_parameters
from trtllm_serve_cli.sizing.shape import parse_shape
from trtllm_serve_cli.sizing.stages import Stage, split_stages

ALL = [config for name, config in vars(configs).items() if name.isupper()]


def _held(stage: Stage) -> float:
    return stage.matrices + stage.experts + stage.replicated + stage.embedding + stage.head


@pytest.mark.parametrize("config", ALL, ids=lambda config: config["architectures"][0])
@pytest.mark.parametrize("pp", [1, 3])
def test_stages_contain_every_parameter(config: dict[str, Any], pp: int) -> None:
    shape = parse_shape(config)
    stages = split_stages(shape, Parallelism(pp=pp))
    # The last stage has a copy of the tied embedding to compute logits.
    copied = stages[-1].head if shape.tie_word_embeddings else 0
    total = sum(map(_held, stages)) - copied
    assert total == pytest.approx(count_parameters(shape).total, rel=1e-12)


def test_first_stages_have_the_extra_layers() -> None:
    stages = split_stages(parse_shape(configs.DEEPSEEK_V3), Parallelism(pp=4))
    assert [stage.num_layers for stage in stages] == [16, 15, 15, 15]
    assert [stage.embedding > 0 for stage in stages] == [True, False, False, False]
    assert [stage.head > 0 for stage in stages] == [False, False, False, True]
    # The first three layers are dense.
    assert stages[1].experts / stages[0].experts == pytest.approx(15 / 13)


def test_tensor_parallelism_divides_only_some_parameters() -> None:
    shape = parse_shape(configs.MIXTRAL_8X7B)
    whole, half = (split_stages(shape, check_parallelism(shape, tp))[0] for tp in (1, 2))
    assert half == Stage(
        num_layers=32,
        matrices=whole.matrices / 2,
        experts=whole.experts / 2,
        replicated=whole.replicated,
        embedding=whole.embedding,
        head=whole.head / 2,
        head_read=whole.head / 2,
    )


def test_experts_are_split_or_distributed() -> None:
    shape = parse_shape(configs.MIXTRAL_8X7B)
    ways = ({"moe_tp": 8}, {"moe_ep": 8}, {"moe_tp": 2})
    spread = {split_stages(shape, check_parallelism(shape, 8, **way))[0].experts for way in ways}
    assert spread == {32 * 3 * 4096 * 14336}


def test_repeats_key_value_heads_on_more_gpus() -> None:
    shape = parse_shape(configs.LLAMA_2_70B | {"num_hidden_layers": 1})
    eight, sixteen = (split_stages(shape, Parallelism(tp))[0].matrices for tp in (8, 16))
    keys_and_values = 2 * 128 * 8192
    assert sixteen - keys_and_values == (eight - keys_and_values) / 2
