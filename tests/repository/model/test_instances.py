"""The number of engine instances, and their GPUs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE
from tests.samples.repositories import copy_upstream
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.instances import (
    EngineInstances,
    read_instances,
    with_instance_count,
)
from trtllm_serve_cli.repository.model.model_repository import OpenRepository, open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import apply_changes, plan_changes
from trtllm_serve_cli.repository.validation.validate import validate_repository

COUNT = "tensorrt_llm_instance_count"


def test_plan_has_the_requested_instances() -> None:
    plan = plan_repository("mine", ENGINE, ServingOptions(parameters={COUNT: "2"}))
    counts = {model.name: model.instance_count for model in plan.models}
    assert counts == dict.fromkeys(counts, 1) | {"tensorrt_llm": 2}


SHARED = "instances_share_engine"


@pytest.mark.parametrize(("gpus", "count"), [("0", "1"), ("0,1", "1"), ("0,1;2,3", "2")])
def test_each_group_of_gpus_gets_an_instance(gpus: str, count: str) -> None:
    expected = {"gpu_device_ids": gpus, COUNT: count}
    assert with_instance_count({"gpu_device_ids": gpus}, "tensorrt") == expected
    assert with_instance_count(expected, "tensorrt") == expected


@pytest.mark.parametrize("overrides", [{}, {COUNT: "3"}, {"gpu_device_ids": ""}])
def test_overrides_without_groups_stay_unchanged(overrides: dict[str, str]) -> None:
    assert with_instance_count(overrides, "tensorrt") == overrides


def test_several_groups_of_gpus_get_separate_engines() -> None:
    one, two = {"gpu_device_ids": "0,1"}, {"gpu_device_ids": "0;1"}
    assert with_instance_count(one, "vllm") == one
    assert with_instance_count(two, "vllm") == {**two, COUNT: "2", SHARED: "false"}


@pytest.mark.parametrize(("name", "value"), [(COUNT, "3"), (SHARED, "true")])
def test_rejects_an_instance_count_that_contradicts_the_groups(name: str, value: str) -> None:
    with pytest.raises(BadInput) as raised:
        with_instance_count({"gpu_device_ids": "0;1", name: value}, "vllm")
    assert str(raised.value) == (
        f"{name}={value} contradicts gpu_device_ids=0;1.\n"
        "Why: each GPU group requires one instance with a separate engine\n"
        f"Next: omit {name}, or change the groups, for example to gpu_device_ids=0,1;2,3"
    )


def test_setting_gpus_sets_the_instance_count(tmp_path: Path) -> None:
    copy = open_repository(copy_upstream(tmp_path / "copy"))
    changes = plan_changes(copy, {"gpu_device_ids": "0,1;2,3"})
    summary = [(each.model, each.place, each.new) for each in changes]
    assert summary == [
        ("tensorrt_llm", "parameters.gpu_device_ids", "0,1;2,3"),
        ("tensorrt_llm", "instance_group.count", "2"),
    ]


def test_validation_finds_groups_without_instances(tmp_path: Path) -> None:
    copy = open_repository(copy_upstream(tmp_path / "copy"))
    (text,) = apply_changes(copy, plan_changes(copy, {"gpu_device_ids": "0;1;2"})).values()
    path = copy.path / "tensorrt_llm" / "config.pbtxt"
    path.write_text(text.replace("count: 3", "count: 2"))
    found = [each.what for each in validate_repository(open_repository(copy.path))]
    assert (
        "gpu_device_ids is 0;1;2, which requires one instance with a separate engine per group, "
        "but tensorrt_llm_instance_count is 2"
    ) in found
    path.write_text(text)
    found = [each.what for each in validate_repository(open_repository(copy.path))]
    assert not [what for what in found if what.startswith("gpu_device_ids")]


def filled_copy(directory: Path, **overrides: str) -> OpenRepository:
    copy = open_repository(copy_upstream(directory))
    overrides = {"triton_backend": "tensorrtllm", **overrides}
    texts = apply_changes(copy, plan_changes(copy, overrides))
    return dataclasses.replace(copy, texts={**copy.texts, **texts})


def test_reads_instances_of_an_upstream_copy(tmp_path: Path) -> None:
    one = filled_copy(tmp_path / "one")
    assert read_instances(one, 2) == EngineInstances("tensorrt_llm", 2)
    two = filled_copy(tmp_path / "two", gpu_device_ids="0,1;2,3", participant_ids="1,2;3,4")
    expected = EngineInstances("mine", 2, ((0, 1), (2, 3)), ((1, 2), (3, 4)))
    assert read_instances(two, 2, name="mine") == expected
    assert [EngineInstances("mine", 2).count, expected.count] == [1, 2]


def test_python_model_has_no_backend_instances(tmp_path: Path) -> None:
    write_repository(plan_repository("mine", ENGINE, ServingOptions()), tmp_path / "mine")
    assert read_instances(open_repository(tmp_path / "mine"), 1) is None


@pytest.mark.parametrize("value", ["first", "-1"])
def test_rejects_groups_that_are_not_whole_numbers(tmp_path: Path, value: str) -> None:
    copy = filled_copy(tmp_path / "copy", gpu_device_ids="0")
    text = copy.texts["tensorrt_llm"].replace('string_value: "0"', f'string_value: "{value}"')
    texts = {**copy.texts, "tensorrt_llm": text}
    with pytest.raises(
        BadInput, match=f"'{value}' is not a valid value for the gpu_device_ids parameter in copy"
    ):
        read_instances(dataclasses.replace(copy, texts=texts), 1)
