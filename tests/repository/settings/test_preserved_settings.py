from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.samples.repositories import add_model
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.repository.settings.preserved_settings import (
    PreservedSettings,
    choose_preserved,
)

_GPUS = {"gpu_device_ids": "0;1", "tensorrt_llm_instance_count": "2"}


@pytest.mark.parametrize(
    ("previous", "kind", "options", "kept"),
    [
        ({"num_threads": "2"}, "openvino", {}, {"num_threads"}),
        # The new engine kind does not have the parameter, or does not accept its value.
        ({"num_threads": "2", "max_num_seqs": "3"}, "sim", {}, {"max_num_seqs"}),
        ({"max_beam_width": "", "lora_prefetch_dir": ""}, "openvino", {}, {"lora_prefetch_dir"}),
        ({"of_an_older_version": "1"}, "openvino", {}, set()),
        # The parameter has no effect, but an import writes it nevertheless.
        ({"gpu_weights_percent": "1"}, "openvino", {}, {"gpu_weights_percent"}),
        # The model has no draft model any more.
        ({"draft_gpu_device_ids": "1"}, "tensorrt", {}, set()),
        (
            {"draft_gpu_device_ids": "1"},
            "tensorrt",
            {"parameters": {"draft_engine_dir": "/draft"}},
            {"draft_gpu_device_ids"},
        ),
        # Other layouts do not store the parameter.
        ({"max_num_seqs": "3"}, "openvino", {"layout": "llmapi"}, set()),
    ],
)
def test_keeps_settings_that_fit_and_reports_the_rest(
    home_folder: object,
    previous: dict[str, str],
    kind: str,
    options: dict[str, Any],
    kept: set[str],
) -> None:
    known = dataclasses.replace(add_model(find_home(), "mine"), preserved=previous)
    assert choose_preserved(known, ServingOptions(**options), kind) == PreservedSettings(
        {name: value for name, value in previous.items() if name in kept},
        {name: value for name, value in previous.items() if name not in kept},
    )


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, _GPUS),
        ({"parameters": {"gpu_device_ids": "0"}}, {}),
        ({"parameters": {"tensorrt_llm_instance_count": "2"}}, {"gpu_device_ids": "0;1"}),
    ],
)
def test_instance_count_follows_the_gpus_of_the_import(
    home_folder: object, options: dict[str, Any], kept: dict[str, str]
) -> None:
    known = dataclasses.replace(
        add_model(find_home(), "mine"), preserved=_GPUS, engine_kind="tensorrt"
    )
    assert choose_preserved(known, ServingOptions(**options), "tensorrt") == PreservedSettings(kept)


def test_describe_has_a_line_for_kept_and_for_dropped_settings() -> None:
    assert PreservedSettings().describe() == []
    assert PreservedSettings({"a": "1", "b": ""}, {"c": "2"}).describe() == [
        "Kept settings: a=1; b=",
        "Dropped settings that do not apply to this import: c=2",
    ]


def test_describe_reports_why_the_settings_are_unknown() -> None:
    assert PreservedSettings(problem="tllm.json cannot be read").describe() == [
        "Dropped the settings of `tllm set`, because tllm.json cannot be read"
    ]
