"""Every parameter that an import writes is read: by the runtime, a client or upstream's backend."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

import trtllm_serve_cli.runtime
from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import engine_config, tensorrt_engine, write_engine
from trtllm_serve_cli.engine_kinds.registry import kind_names
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.model_config import RepositoryPlan
from trtllm_serve_cli.repository.model.parameters import load_parameters, refuse_of_upstream
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

BACKEND = yaml.safe_load(
    (Path(__file__).parents[2] / "samples/backend_parameters.yaml").read_text()
)
# Triton's backend API reads the first parameter. The newest version of the backend requires the
# others, which older versions ignore.
NOT_OF_EVERY_BACKEND = {"FORCE_CPU_ONLY_INPUT_TENSORS", "executor_worker_path", "tokenizer_dir"}
# Text models do not read these parameters. Clients read them from the model's configuration.
OF_CLIENTS = {"max_seq_len", "chat_template", "bos_token", "eos_token", "adds_bos"}
RUNTIME = "".join(
    path.read_text(encoding="utf-8")
    for path in Path(next(iter(trtllm_serve_cli.runtime.__path__))).rglob("*.py")
)


def _list_unread(plan: RepositoryPlan) -> set[tuple[str, str]]:
    """Return the parameters of Python models whose names the runtime does not contain."""
    return {
        (model.name, name)
        for model in plan.models
        if model.module is not None
        for name in model.parameters
        if f'"{name}"' not in RUNTIME and not (model.module == "text" and name in OF_CLIENTS)
    }


@pytest.mark.parametrize("kind", [kind for kind in kind_names() if kind != "tensorrt"])
def test_runtime_reads_each_parameter(kind: str) -> None:
    engine = dataclasses.replace(ENGINE, kind=kind)
    assert _list_unread(plan_repository("mine", engine, ServingOptions())) == set()


@pytest.mark.parametrize("version", BACKEND)
def test_backend_reads_each_parameter(tmp_path: Path, version: str) -> None:
    drafts = {"max_draft_len": 5, "plugin_config": {"use_paged_context_fmha": True}}
    engine = tensorrt_engine(tmp_path, version, **drafts)
    parameters = {"tokenizer_dir": str(tmp_path / "tokenizer")}
    if version != "0.8.0":
        draft = write_engine(tmp_path / "draft", engine_config(version, **drafts))
        parameters["draft_engine_dir"] = str(draft)
    plan = plan_repository("mine", engine, ServingOptions(parameters=parameters))
    assert _list_unread(plan) == set()
    for model in plan.models:
        if model.module is None:
            assert set(model.parameters) - set(BACKEND[version]) <= NOT_OF_EVERY_BACKEND


def test_parameters_that_only_upstreams_models_read_are_refused() -> None:
    of_upstream = [each.name for each in load_parameters().values() if each.of_upstream]
    assert of_upstream == [
        "tokenizer_type", "multimodal_model_path", "visual_model_path", "max_num_images",
        "multimodal_encoders_name",
    ]  # fmt: skip
    for name in of_upstream:
        assert f'"{name}"' not in RUNTIME
        with pytest.raises(BadInput) as raised:
            refuse_of_upstream([name], "tensorrt")
        assert str(raised.value) == (
            f"The {name} parameter has no effect in a repository created by tllm.\n"
            "Why: only the Python models in NVIDIA's repository read the parameter, and tllm "
            "replaces these models\n"
            "Next: omit the parameter, or set it in a copy of NVIDIA's repository with "
            f"`tllm set --repo DIR {name}=VALUE`"
        )
