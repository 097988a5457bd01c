"""Serving values of the kinds that serve a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.engine_kinds.checkpoint_serving import front_ends, values_of
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.engine_arguments import ArgumentTable
from trtllm_serve_cli.runtime.engines.pytorch.arguments import LLM_ARGUMENTS
from trtllm_serve_cli.runtime.engines.vllm.arguments import VLLM_ARGUMENTS

COUNT, SHARED = "tensorrt_llm_instance_count", "instances_share_engine"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, ("4", "true")),
        ({"gpu_device_ids": "0,1"}, ("4", "true")),
        ({"gpu_device_ids": "0;1"}, ("1", "false")),
        ({"priority_levels": "2"}, ("1", "false")),
        ({"default_timeout_microseconds": "5"}, ("1", "false")),
        ({"priority_levels": "0"}, ("4", "true")),
    ],
)
def test_gpu_engine_has_several_front_ends_unless_its_queue_has_an_order(
    overrides: dict[str, str], expected: tuple[str, str]
) -> None:
    values = front_ends(overrides, 256)
    assert values == {"bls_instance_count": "4", COUNT: expected[0], SHARED: expected[1]}


@pytest.mark.parametrize(("sequences", "instances"), [(1, 1), (64, 1), (65, 2), (1024, 4)])
def test_number_of_instances_depends_on_the_number_of_sequences(
    sequences: int, instances: int
) -> None:
    values = front_ends({}, sequences)
    assert (values["bls_instance_count"], values[COUNT]) == (str(instances), str(instances))


@pytest.mark.parametrize(
    ("table", "arguments", "why"),
    [
        (LLM_ARGUMENTS, {"kv_cache_config": 5}, "kv_cache_config is not a JSON object"),
        (VLLM_ARGUMENTS, {"structured_outputs_config": []}, "structured_outputs_config is not a"),
        (VLLM_ARGUMENTS, {"max_num_seqs": "many"}, "max_num_seqs has the invalid value 'many'"),
        (VLLM_ARGUMENTS, {"max_num_seqs": None}, "max_num_seqs is null"),
        (LLM_ARGUMENTS, {"max_batch_size": None}, "max_batch_size is null"),
    ],
)
def test_invalid_arguments_are_rejected(
    table: ArgumentTable, arguments: dict[str, Any], why: str
) -> None:
    limits = {argument: 1 for argument, read in table.rows.values() if read is int}
    top = {name: value for name, value in limits.items() if "." not in name}
    with pytest.raises(BadInput) as raised:
        values_of(table, {**top, **arguments})
    assert why in raised.value.why
    assert raised.value.next_step == f"correct the value of {table.rest}"
