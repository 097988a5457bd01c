"""Parameter counts of older models, compared with the sizes on their model cards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.samples import older_configs
from trtllm_serve_cli.sizing.parameters import count_parameters
from trtllm_serve_cli.sizing.shape import parse_shape

_BILLIONS = {
    "FALCON_40B_RW": 41.3,
    "FALCON_7B_RW": 6.92,
    "INTERNLM_7B": 7.32,
    "QWEN_7B": 7.72,
    "SKYWORK_13B": 13.8,
    "BAICHUAN_13B": 13.26,
    "DBRX": 131.6,
    "EXAONE_3_8B": 7.82,
    "PHI_3_5_MOE": 41.9,
    "DEEPSEEK_MOE_16B": 16.4,
    "PHI_3_SMALL": 7.39,
    "JAIS_13B": 13.0,
    "MINITRON_4B": 4.19,
}


@pytest.mark.parametrize(("name", "billions"), _BILLIONS.items(), ids=_BILLIONS)
def test_count_is_the_published_size(name: str, billions: float) -> None:
    config: dict[str, Any] = getattr(older_configs, name)
    assert count_parameters(parse_shape(config)).total / 1e9 == pytest.approx(billions, rel=0.02)
