"""Imported models as draft models of other models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, UnknownModel
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.draft_model import with_draft_model
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository


def _declaration(kind: str = "auto") -> Declaration:
    return Declaration(ModelSection("large"), engine=EngineSection(kind))


def _import_draft(home: Home, folder: Path) -> Path:
    engine = tensorrt_engine(folder)
    options = ServingOptions(parameters={"tokenizer_dir": "/tokenizer"})
    write_repository(plan_repository("small", engine, options), home.models / "small")
    return engine.path


@pytest.mark.parametrize("kind", ["auto", "tensorrt"])
def test_engine_of_the_model_becomes_the_draft_engine(
    home: Home, tmp_path: Path, kind: str
) -> None:
    engine_dir = _import_draft(home, tmp_path)
    declaration = with_draft_model(_declaration(kind), "small", home)
    assert declaration.engine.kind == "tensorrt"
    assert declaration.repository.parameters == {"draft_engine_dir": str(engine_dir)}


def test_other_engine_kind_is_refused(home: Home, tmp_path: Path) -> None:
    _import_draft(home, tmp_path)
    with pytest.raises(BadInput) as raised:
        with_draft_model(_declaration("vllm"), "small", home)
    assert str(raised.value) == (
        "small cannot be the draft model of large.\n"
        "Why: both models must use the same engine kind, but small uses tensorrt and "
        "--engine requests vllm\n"
        "Next: import small again with `tllm import -m small --engine vllm`, or pass --engine "
        "tensorrt for large"
    )


def test_model_without_a_tensorrt_engine_is_refused(home: Home) -> None:
    write_repository(plan_repository("small", ENGINE, ServingOptions()), home.models / "small")
    with pytest.raises(BadInput) as raised:
        with_draft_model(_declaration(), "small", home)
    assert str(raised.value) == (
        "small cannot be a draft model.\n"
        "Why: the engine kind of small is openvino, but only tensorrt engines can be draft models\n"
        "Next: import small again with `tllm import -m small --engine tensorrt`"
    )


def test_unknown_model_is_refused(home: Home) -> None:
    with pytest.raises(UnknownModel, match="No model named 'small' has been imported"):
        with_draft_model(_declaration(), "small", home)
