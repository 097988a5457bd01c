"""Checks that a machine can run a TensorRT engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.samples.tensorrt_engines import write_engine
from trtllm_serve_cli.build.engine import ENGINE_FILE, BuildRecord, add_build_record
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.containers.deployment import check_engine_fits
from trtllm_serve_cli.repository.model.store import ImportedModel

HERE = Machine(gpus=("NVIDIA H200", "NVIDIA H200"), versions={"tensorrt_llm": "1.1.0"})


@pytest.fixture
def model(tmp_path: Path, home_folder: Path) -> ImportedModel:
    """Return a model whose engine was built by 1.1.0 for two H200 GPUs."""
    engine = write_engine(tmp_path / "engine")
    (engine / ENGINE_FILE).write_text("{}")
    add_build_record(engine, BuildRecord("mine", 0, "/hf", None, {"gpu": "h200"}, ()))
    return ImportedModel(
        "mine",
        home_folder / "models" / "mine",
        "inflight",
        "tensorrt",
        engine,
        "hf:a/b@c",
        "f",
        0,
        ("tensorrt_llm",),
    )


@pytest.mark.parametrize(
    "machine",
    [
        HERE,
        Machine(),
        dataclasses.replace(HERE, versions={}),
    ],
)
def test_accepts_an_engine_that_may_fit(model: ImportedModel, machine: Machine) -> None:
    check_engine_fits(model, machine)


@pytest.mark.parametrize(
    ("machine", "what", "next_step"),
    [
        (
            dataclasses.replace(HERE, versions={"tensorrt_llm": "1.2.0"}),
            "The engine for mine was built with another TensorRT-LLM version.",
            "run `tllm export mine > mine.yaml && tllm import -f mine.yaml --force`, or serve the "
            "engine in nvcr.io/nvidia/tritonserver:26.02-trtllm-python-py3",
        ),
        (
            Machine(gpus=("NVIDIA H200",)),
            "The engine for mine needs 2 GPUs, but this machine has 1.",
            "import the model again with a lower --tp or --pp",
        ),
        (
            Machine(gpus=("NVIDIA L4", "NVIDIA L4")),
            "The engine for mine was built for another GPU model.",
            "run `tllm export mine > mine.yaml && tllm import -f mine.yaml --force`",
        ),
    ],
)
def test_rejects_an_engine_that_does_not_fit(
    model: ImportedModel, machine: Machine, what: str, next_step: str
) -> None:
    with pytest.raises(BadInput) as raised:
        check_engine_fits(model, machine)
    assert (raised.value.what, raised.value.next_step) == (what, next_step)


def test_gpus_of_other_machines_count(model: ImportedModel) -> None:
    check_engine_fits(model, Machine(gpus=("NVIDIA H200",)), is_one_machine=False)


def test_next_step_for_an_engine_source_is_a_build_by_the_user(model: ImportedModel) -> None:
    model = dataclasses.replace(model, source=f"engine:{model.engine_path}")
    with pytest.raises(BadInput) as raised:
        check_engine_fits(model, Machine(gpus=("NVIDIA L4",) * 2))
    assert raised.value.next_step == "build the engine again on this machine and import it"


def test_other_engine_kinds_fit_any_machine(model: ImportedModel) -> None:
    check_engine_fits(dataclasses.replace(model, engine_kind="openvino"), Machine())
