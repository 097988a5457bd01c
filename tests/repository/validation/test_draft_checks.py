"""Findings about the draft model of a repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples.tensorrt_engines import engine_config, tensorrt_engine, write_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.model.model_repository import OpenRepository, open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import apply_changes, plan_changes
from trtllm_serve_cli.repository.validation.validate import check_loadable, validate_repository

PAGED = {"plugin_config": {"use_paged_context_fmha": True}}


def _write(folder: Path, **build: Any) -> OpenRepository:
    engine = tensorrt_engine(folder, **PAGED, speculative_decoding_mode=2, max_draft_len=5)
    draft = write_engine(folder / "draft", engine_config(**PAGED, **build))
    parameters = {"tokenizer_dir": str(folder / "tokenizer"), "draft_engine_dir": str(draft)}
    plan = plan_repository("mine", engine, ServingOptions(parameters=parameters))
    write_repository(plan, folder / "mine")
    return open_repository(folder / "mine")


def _rebuild(folder: Path, **changes: Any) -> None:
    """Replace facts in the `config.json` of the draft engine."""
    path = folder / "draft" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _findings(repository: OpenRepository) -> list[tuple[str, str]]:
    return [(each.severity, each.what) for each in validate_repository(repository)]


def test_rendered_draft_model_is_valid(tmp_path: Path) -> None:
    repository = _write(tmp_path)
    assert _findings(repository) == []
    check_loadable(repository)


def test_engine_of_another_version_is_an_error(tmp_path: Path) -> None:
    repository = _write(tmp_path)
    _rebuild(tmp_path, version="1.0.0")
    what = (
        "the draft model cannot generate draft tokens: the draft engine was built with "
        "TensorRT-LLM 1.0.0, but the target engine was built with 1.1.0"
    )
    assert _findings(repository) == [("error", what)]
    with pytest.raises(RepositoryError) as raised:
        check_loadable(repository)
    assert what in raised.value.why


def test_missing_engine_is_an_error(tmp_path: Path) -> None:
    repository = _write(tmp_path)
    (tmp_path / "draft").rename(tmp_path / "moved")
    assert _findings(repository) == [
        ("error", f"draft_engine_dir is {tmp_path / 'draft'}, which does not exist")
    ]


def test_smaller_limits_of_the_draft_engine_are_warnings(tmp_path: Path) -> None:
    repository = _write(tmp_path, max_seq_len=99)
    assert _findings(repository) == [
        (
            "warning",
            "the draft engine was built for 99 tokens, but the target engine was built for 2048, "
            "so longer requests with num_draft_tokens fail",
        )
    ]


def test_larger_vocabulary_of_the_draft_engine_is_a_warning(tmp_path: Path) -> None:
    repository = _write(tmp_path)
    facts = engine_config()["pretrained_config"]
    _rebuild(tmp_path, pretrained_config={**facts, "vocab_size": 32064})
    assert _findings(repository) == [
        (
            "warning",
            "the draft engine's vocabulary has 32064 tokens, not 32000, so requests with "
            "use_draft_logits fail",
        )
    ]


def test_settings_change_both_models_where_they_must_agree(tmp_path: Path) -> None:
    changes = plan_changes(_write(tmp_path), {"decoupled_mode": "false"})
    assert {each.model for each in changes} >= {"tensorrt_llm", "tensorrt_llm_draft", "mine"}


def test_settings_of_the_draft_model_do_not_change_the_other_model(tmp_path: Path) -> None:
    repository = _write(tmp_path)
    for name, model in (
        ("gpu_device_ids", "tensorrt_llm"),
        ("draft_gpu_device_ids", "tensorrt_llm_draft"),
    ):
        assert {each.model for each in plan_changes(repository, {name: "2,3"})} == {model}


def test_draft_parameters_cannot_be_set_without_a_draft_model(tmp_path: Path) -> None:
    options = ServingOptions(parameters={"tokenizer_dir": str(tmp_path / "tokenizer")})
    write_repository(plan_repository("mine", tensorrt_engine(tmp_path), options), tmp_path / "mine")
    with pytest.raises(BadInput, match="draft_gpu_device_ids parameter cannot be set") as raised:
        plan_changes(open_repository(tmp_path / "mine"), {"draft_gpu_device_ids": "1"})
    assert raised.value.next_step == "import the model again with --draft NAME"


@pytest.mark.parametrize(
    ("changed", "mode"), [("tensorrt_llm_draft", "true"), ("tensorrt_llm", "false")]
)
def test_different_modes_are_an_error(tmp_path: Path, changed: str, mode: str) -> None:
    path = _write(tmp_path).path / changed / "config.pbtxt"
    path.write_text(path.read_text().replace("decoupled: true", "decoupled: false"))
    what = "decoupled_mode differs from the value in tensorrt_llm"
    repository = open_repository(path.parents[1])
    (found,) = (each for each in validate_repository(repository) if each.what == what)
    assert (found.severity, found.next_step) == (
        "error", f"run `tllm set {repository.target} decoupled_mode={mode}`",
    )  # fmt: skip


def test_kv_cache_reuse_cannot_be_disabled(tmp_path: Path) -> None:
    repository = _write(tmp_path)
    changes = plan_changes(repository, {"enable_kv_cache_reuse": "false"})
    with pytest.raises(BadInput, match="verifying draft tokens requires the KV cache") as raised:
        apply_changes(repository, changes)
    assert raised.value.what == f"The settings of {repository.name} cannot be changed."
    assert raised.value.why.startswith("after the change, the draft model cannot generate")


def test_parameters_of_upstreams_models_cannot_be_set(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no effect in a repository created by tllm"):
        plan_changes(_write(tmp_path), {"multimodal_encoders_name": "vision"})
