"""Serving values of the kinds that serve a checkpoint."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.engine_kinds.checkpoint_serving import front_ends

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
