"""What imported models need of other machines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.build.samples import ENGINE
from tests.build.tensorrt_files import engine_config, tensorrt_engine
from trtllm_serve_cli.build import Engine
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.deployment import (
    Deployable,
    check_image,
    describe_deployable,
    spread,
)
from trtllm_serve_cli.repository import (
    ServingOptions,
    open_repository,
    plan_repository,
    read_manifest,
    write_repository,
)

NGC = "nvcr.io/nvidia/tritonserver"


def deployable(folder: Path, engine: Engine, **parameters: str) -> Deployable:
    layout: Any = "vllm" if engine.kind == "vllm" else "inflight"
    options = ServingOptions(parameters=parameters, layout=layout)
    write_repository(plan_repository("mine", engine, options), folder / "repository")
    return describe_deployable(
        read_manifest(folder / "repository"), open_repository(folder / "repository")
    )


def engine_of(folder: Path, **facts: Any) -> Engine:
    (folder / "engine").mkdir()
    return dataclasses.replace(ENGINE, path=folder / "engine", **facts)


def test_engine_of_a_cpu_needs_no_gpu_and_has_no_image(tmp_path: Path) -> None:
    model = deployable(tmp_path, engine_of(tmp_path))
    assert model == Deployable(
        name="mine",
        text_model="mine",
        kind="openvino",
        models=model.models,
        repository=tmp_path / "repository",
        folders=(tmp_path / "repository", tmp_path / "engine"),
        num_gpus=0,
        num_ranks=1,
        image=None,
        reports_waiting=True,
    )
    with pytest.raises(BadInput, match="No public container image serves mine"):
        check_image(model, None)
    assert check_image(model, "mine:1") == "mine:1"


def test_tensorrt_engine_has_a_rank_per_gpu_and_the_image_of_its_version(tmp_path: Path) -> None:
    model = deployable(tmp_path, tensorrt_engine(tmp_path))
    assert (model.num_gpus, model.num_ranks, model.is_llm_api) == (2, 2, False)
    assert (model.image, model.reports_waiting) == (f"{NGC}:26.02-trtllm-python-py3", True)


def test_old_engines_do_not_say_who_waits(tmp_path: Path) -> None:
    model = deployable(tmp_path, tensorrt_engine(tmp_path))
    (tmp_path / "engine" / "config.json").write_text(
        json.dumps({**engine_config(), "version": "0.17.0"})
    )
    again = describe_deployable(read_manifest(model.repository), open_repository(model.repository))
    assert (again.image, again.reports_waiting) == (f"{NGC}:25.01-trtllm-python-py3", False)


def test_llm_api_has_ranks_as_its_arguments_say(tmp_path: Path) -> None:
    arguments = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    model = deployable(tmp_path, engine_of(tmp_path, kind="pytorch", llm_arguments=arguments))
    assert (model.num_gpus, model.num_ranks, model.is_llm_api) == (8, 8, True)
    assert model.image == f"{NGC}:26.07-trtllm-python-py3"


def test_vllm_is_one_process_with_its_gpus(tmp_path: Path) -> None:
    model = deployable(tmp_path, engine_of(tmp_path, kind="vllm"), tensor_parallel_size="2")
    assert (model.num_gpus, model.num_ranks, model.models) == (2, 1, ("mine",))
    assert (model.image, model.reports_waiting) == (f"{NGC}:26.07-vllm-python-py3", False)


def test_folders_that_links_lead_to_are_needed_as_well(tmp_path: Path) -> None:
    blobs = tmp_path / "hub" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "weights").touch()
    engine = engine_of(tmp_path)
    (engine.path / "model.safetensors").symlink_to(blobs / "weights")
    assert deployable(tmp_path, engine).folders == (tmp_path / "repository", engine.path, blobs)


def test_only_equal_shares_are_given() -> None:
    assert spread(16, 2, "ranks") == 8
    with pytest.raises(BadInput, match="16 ranks cannot be shared out among 3 nodes"):
        spread(16, 3, "ranks")
