"""The configuration of a model in `initialize`."""

from __future__ import annotations

import json

import pytest

from trtllm_serve_cli.runtime.triton.parameters import Parameters


def _parameters(**values: str) -> Parameters:
    config = {
        "input": [{"name": "QUERY"}, {"name": "END_ID"}],
        "parameters": {name: {"string_value": value} for name, value in values.items()},
    }
    args = {"model_config": json.dumps(config), "model_name": "demo", "model_version": "1"}
    return Parameters(args)


def test_reads_the_models_name_and_inputs() -> None:
    read = _parameters()
    values = (read.model_name, read.model_version, read.input_names)
    assert values == ("demo", "1", ("QUERY", "END_ID"))


@pytest.mark.parametrize(
    ("groups", "number"),
    [([], 0), ([{"count": 1}], 1), ([{"count": 2}, {}], 3), ([{"count": 2, "gpus": [0, 1]}], 4)],
)
def test_counts_the_instances(groups: list[dict[str, object]], number: int) -> None:
    config = json.dumps({"instance_group": groups})
    args = {"model_config": config, "model_name": "m", "model_version": "1"}
    read = Parameters(args | {"model_instance_name": "m_0_1"})
    assert (read.num_instances, read.instance_name) == (number, "m_0_1")


@pytest.mark.parametrize(
    ("count", "shared", "instance", "expected"),
    [
        (1, "true", 0, (1, True)),
        (3, "true", 0, (1, True)),
        (3, "true", 2, (1, False)),
        (3, "false", 2, (3, True)),
    ],
)
def test_instances_have_their_own_engines_or_share_the_first(
    count: int, shared: str, instance: int, expected: tuple[int, bool]
) -> None:
    config = {
        "instance_group": [{"count": count}],
        "parameters": {"instances_share_engine": {"string_value": shared}},
    }
    args = {"model_config": json.dumps(config), "model_name": "m", "model_version": "1"}
    read = Parameters(args | {"model_instance_name": f"m_0_{instance}"})
    assert (read.num_engines, read.has_engine) == expected
    # A model.yaml contains it for a single instance, too.
    assert read.find_unread(["instances_share_engine"]) == []


def test_converts_values_to_the_requested_type() -> None:
    read = _parameters(text="words", number="-3", on="True", one="1", off="false", zero="0")
    flags = [read.flag(name, default=True) for name in ("on", "one", "off", "zero")]
    assert (read.text("text"), read.number("number"), flags) == (
        "words", -3, [True, True, False, False],
    )  # fmt: skip


@pytest.mark.parametrize("values", [{}, {"it": ""}, {"it": "${it}"}], ids=str)
def test_unset_parameter_has_the_default(values: dict[str, str]) -> None:
    read = _parameters(**values)
    assert (read.text("it", "x"), read.number("it", 5), read.flag("it", True)) == ("x", 5, True)


@pytest.mark.parametrize("values", [{}, {"it": ""}, {"it": "${it}"}], ids=str)
def test_error_names_an_unset_parameter_without_default(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^the config\.pbtxt of demo does not set it; add the"):
        _parameters(**values).number("it")


def test_error_names_an_invalid_number() -> None:
    with pytest.raises(ValueError, match=r"of demo must be a whole number, but is 'many'$"):
        _parameters(it="many").number("it")


@pytest.mark.parametrize("number", ["0", "-1"])
def test_error_names_a_number_that_is_too_small(number: str) -> None:
    with pytest.raises(ValueError, match=rf"must be at least 1, but is {number}$"):
        _parameters(it=number).number("it", at_least=1)


def test_error_names_an_invalid_flag() -> None:
    with pytest.raises(ValueError, match=r"of demo must be true or false, but is 'maybe'$"):
        _parameters(it="maybe").flag("it", default=False)


@pytest.mark.parametrize(
    ("groups", "instance", "expected"),
    [
        ("", "m_0_0", []),
        ("0,1", "m_0_0", ["0", "1"]),
        ("0,1;2, 3", "m_0_1", ["2", "3"]),
        ("0;1", "m", ["0"]),
    ],
)
def test_reads_the_gpus_of_an_instance(groups: str, instance: str, expected: list[str]) -> None:
    read = _parameters(gpu_device_ids=groups)
    read.instance_name = instance
    assert read.gpus == expected


def test_rejects_more_instances_than_gpu_groups() -> None:
    read = _parameters(gpu_device_ids="0;1")
    read.instance_name = "m_0_2"
    with pytest.raises(
        ValueError, match=r"lists GPUs for only 2 instances; add the GPUs for m_0_2"
    ):
        _ = read.gpus
