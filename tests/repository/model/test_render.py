"""The rendered files, parsed as Triton parses them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.builds import ENGINE
from trtllm_serve_cli import __version__
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.paths import write_aside
from trtllm_serve_cli.repository.model.contract import Tensor
from trtllm_serve_cli.repository.model.model_config import ModelConfig, QueuePolicy
from trtllm_serve_cli.repository.model.render import manifest_of, render_files, write_repository
from trtllm_serve_cli.repository.model.runtime_copy import fingerprint_runtime, read_runtime
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

PLAN = plan_repository(
    "mine", ENGINE, ServingOptions(max_batch_size=8, parameters={"max_queue_size": "9"})
)
FILES = render_files(PLAN)


def parse(model: ModelConfig) -> model_config_pb2.ModelConfig:
    return text_format.Parse(FILES[f"{model.name}/config.pbtxt"], model_config_pb2.ModelConfig())


def tensor_of(message) -> Tensor:
    return Tensor(
        name=message.name,
        type=model_config_pb2.DataType.Name(message.data_type),
        dims=tuple(message.dims),
        reshape=tuple(message.reshape.shape) if message.HasField("reshape") else None,
        optional=getattr(message, "optional", False),
        ragged=getattr(message, "allow_ragged_batch", False),
    )


def queue_of(batching: Any) -> QueuePolicy:
    policy = batching.default_queue_policy
    return QueuePolicy(
        max_queue_size=policy.max_queue_size,
        default_timeout_microseconds=policy.default_timeout_microseconds,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
    )


@pytest.mark.parametrize("model", PLAN.models, ids=lambda model: model.name)
def test_rendered_config_matches_the_plan(model: ModelConfig) -> None:
    config = parse(model)
    rendered = ModelConfig(
        name=config.name,
        title=model.title,
        module=model.module,
        inputs=tuple(tensor_of(message) for message in config.input),
        outputs=tuple(tensor_of(message) for message in config.output),
        parameters={key: value.string_value for key, value in config.parameters.items()},
        max_batch_size=config.max_batch_size,
        instance_count=config.instance_group[0].count,
        is_decoupled=config.model_transaction_policy.decoupled,
        is_batched=config.HasField("dynamic_batching"),
        max_queue_delay_microseconds=config.dynamic_batching.max_queue_delay_microseconds,
        queue=queue_of(config.dynamic_batching),
        backend=config.backend,
    )
    assert rendered == model


@pytest.mark.parametrize("model", PLAN.models, ids=lambda model: model.name)
def test_instances_do_not_need_a_gpu(model: ModelConfig) -> None:
    groups = parse(model).instance_group
    assert [group.kind for group in groups] == [model_config_pb2.ModelInstanceGroup.KIND_CPU]


@pytest.mark.parametrize("path", [path for path in FILES if path.endswith(".py")])
def test_every_rendered_python_file_compiles(path: str) -> None:
    ast.parse(FILES[path])


def test_every_model_contains_the_runtime() -> None:
    root = Path("trtllm_serve_cli/runtime")
    package = [str(path.relative_to(root)) for path in root.rglob("*.py")]
    for model in PLAN.models:
        prefix = f"{model.name}/1/tllm_runtime/"
        assert sorted(p.removeprefix(prefix) for p in FILES if p.startswith(prefix)) == sorted(
            package
        )


def test_write_repository_writes_files_and_manifest(tmp_path: Path) -> None:
    write_repository(PLAN, tmp_path / "mine")
    there = {
        str(path.relative_to(tmp_path / "mine")): path.read_text(encoding="utf-8")
        for path in (tmp_path / "mine").rglob("*")
        if path.is_file()
    }
    manifest = json.loads(there.pop("tllm.json"))
    assert there == render_files(PLAN)
    assert manifest == json.loads(json.dumps(manifest_of(PLAN, manifest["created_at"])))


def test_manifest_describes_the_repository() -> None:
    manifest = manifest_of(PLAN, 1700000000)
    assert manifest.pop("engine")["chat_template"] == ENGINE.chat_template
    assert manifest == {
        "schema": 1,
        "name": "mine",
        "layout": "inflight",
        "created_at": 1700000000,
        "created_by": f"tllm {__version__}",
        "runtime": fingerprint_runtime(read_runtime("openvino")),
        "models": [model.name for model in PLAN.models],
        "parameters": PLAN.parameters,
        "asked": list(PLAN.requested),
        "set": {},
        "declaration": {},
    }


def test_disk_error_keeps_the_old_repository(tmp_path: Path) -> None:
    destination = tmp_path / "mine"
    with write_aside(destination) as aside:
        (aside / "tllm.json").write_text("old")
    unwritable = plan_repository("x" * 300, ENGINE, ServingOptions())
    with pytest.raises(OSError, match="File name too long"):
        write_repository(unwritable, destination)
    assert [path.name for path in tmp_path.iterdir() if path.name == "mine"] == ["mine"]
    assert [path.name for path in destination.iterdir()] == ["tllm.json"]
