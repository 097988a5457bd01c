from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.registry import kind_names
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing.declaration import (
    Declaration,
    declare_model,
    override,
    parse_declaration,
    read_declaration,
    render_declaration,
)
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection, RepositorySection
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.merged_options import choose_options
from trtllm_serve_cli.paths import Home, find_home
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.model.store import MANIFEST, ImportedModel, read_manifest
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import apply_changes, plan_changes, write_changes
from trtllm_serve_cli.yaml_schema import plain_changes

TEXT = """\
model:
  name: llama
  source: hf:meta-llama/Llama-2-7b-hf
engine:
  kind: tensorrt
  trtllm_version: 0.9.0
build:
  tp: 4
  dtype: float16
  lora_target_modules:
  - attn_q
  - attn_v
repository:
  parameters:
    enable_kv_cache_reuse: 'true'
launch:
  http_port: 9000
"""
DECLARED = Declaration(
    ModelSection("llama", "hf:meta-llama/Llama-2-7b-hf"),
    EngineSection("tensorrt", "0.9.0"),
    EngineOptions(tp=4, dtype="float16", lora_target_modules=("attn_q", "attn_v")),
    RepositorySection(parameters={"enable_kv_cache_reuse": "true"}),
    {"http_port": 9000},
)


def parse(text: str) -> Declaration:
    return parse_declaration(text, where="tllm.yaml", folder=Path("/there"))


def test_declaration_is_parsed_and_rendered():
    assert parse(TEXT) == DECLARED
    assert render_declaration(DECLARED) == TEXT


def test_paths_are_relative_to_the_file(tmp_path: Path):
    text = "model: {name: m, source: 'local:../x'}\nengine: {dir: e}\nrepository: {dir: /r}\n"
    (tmp_path / "tllm.yaml").write_text(text)
    declared = read_declaration(tmp_path / "tllm.yaml")
    assert declared.model.source == f"local:{tmp_path / '../x'}"
    assert (declared.engine.dir, declared.repository.dir) == (tmp_path / "e", Path("/r"))


def test_build_paths_are_relative_to_the_file():
    build = parse("model: {name: m}\nbuild: {lora_dir: [a, /b], speculative_model: c}").build
    assert (build.lora_dir, build.speculative_model) == (("/there/a", "/b"), "/there/c")


def test_paths_in_build_flags_are_relative_to_the_file():
    flags = parse("model: {name: m}\nbuild: {flags: {quant_ckpt_path: a/b, log_level: info}}").build
    assert flags.flags == {"quant_ckpt_path": "/there/a/b", "log_level": "info"}


def test_build_flags_of_options_are_added_to_those_of_the_file():
    declared = parse("model: {name: m}\nbuild: {flags: {log_level: info, moe_plugin: auto}}")
    changed = override(declared, {"build": {"flags": {"log_level": "verbose"}}})
    assert changed.build.flags == {"log_level": "verbose", "moe_plugin": "auto"}
    assert parse(render_declaration(changed)) == changed


def test_missing_file_is_reported(tmp_path: Path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_declaration(tmp_path / "tllm.yaml")


def test_options_override_the_file():
    overrides = {
        "build": {"tp": 2, "dtype": None},
        "repository": {"parameters": {"max_queue_size": "3"}},
    }
    changed = override(DECLARED, overrides)
    assert (changed.build.tp, changed.build.dtype) == (2, "float16")
    assert changed.repository.parameters == {"enable_kv_cache_reuse": "true", "max_queue_size": "3"}


def add_declared(home: Home, declaration: dict[str, object], **serving: object) -> ImportedModel:
    plan = plan_repository("mine", ENGINE, ServingOptions(**serving))
    path = home.models / "mine"
    write_repository(dataclasses.replace(plan, declaration=declaration), path)
    return read_manifest(path)


def change(model: ImportedModel, **settings: str) -> None:
    repository = open_repository(model.path)
    texts = apply_changes(repository, plan_changes(repository, settings))
    write_changes(repository, texts, settings)


def test_declaration_includes_current_settings(home_folder: Path):
    declared = {"model": {"name": "mine", "revision": "main"}, "launch": {"http_port": 9000}}
    parameters = {"max_queue_size": "7"}
    declared["repository"] = {"parameters": parameters}
    model = add_declared(find_home(), declared, parameters=parameters)
    change(model, max_beam_width="2")
    assert declare_model(model, open_repository(model.path)) == Declaration(
        ModelSection("mine", ENGINE.source),
        EngineSection("openvino"),
        repository=RepositorySection(parameters={"max_queue_size": "7", "max_beam_width": "2"}),
        launch={"http_port": 9000},
    )


def test_emptied_parameter_is_declared_empty(home_folder: Path):
    served = RepositorySection(parameters={"engine_python": "/py"})
    declared = {"model": {"name": "mine"}, "repository": {"parameters": dict(served.parameters)}}
    model = add_declared(find_home(), declared, parameters=served.parameters)
    change(model, engine_python="", lora_prefetch_dir="/a")
    change(model, lora_prefetch_dir="")
    before = open_repository(model.path)
    text = render_declaration(declare_model(model, before))
    assert "engine_python: ''" in text
    parameters = parse(text).repository.parameters
    assert parameters == {"engine_python": ""}
    plan = plan_repository("mine", ENGINE, ServingOptions(parameters=parameters))
    write_repository(plan, model.path)
    assert open_repository(model.path).texts == before.texts


@pytest.mark.parametrize(
    ("name", "edited", "new", "why"),
    [
        ("triton_max_batch_size", "max_batch_size: 64", "max_batch_size: 8",
         "ensemble: 8, mine: 64, postprocessing: 64, preprocessing: 64, tensorrt_llm: 64, "
         "tensorrt_llm_bls: 64"),
        ("tokenizer_dir", f'"{ENGINE.path}"', '""',
         f"ensemble: empty, mine: {ENGINE.path}, postprocessing: {ENGINE.path}, "
         f"preprocessing: {ENGINE.path}, tensorrt_llm_bls: {ENGINE.path}"),
    ],
)  # fmt: skip
def test_models_that_differ_in_a_parameter_cannot_be_declared(
    home_folder: Path, name: str, edited: str, new: str, why: str
):
    model = add_declared(find_home(), {})
    config = model.path / "ensemble" / "config.pbtxt"
    assert edited in config.read_text()
    config.write_text(config.read_text().replace(edited, new, 1))
    with pytest.raises(BadInput) as raised:
        declare_model(model, open_repository(model.path))
    assert str(raised.value) == (
        f"{name} has different values in the models of mine.\n"
        "Why: a tllm.yaml file sets one value for all models of a repository, but the values are "
        f"{why}\n"
        f"Next: set the same value in all models with `tllm set mine {name}=VALUE`"
    )
    change(model, **{name: "64"})
    declared = declare_model(model, open_repository(model.path))
    assert declared.repository.parameters[name] == "64"


def test_manifest_without_parameters_is_declared(home_folder: Path):
    model = add_declared(find_home(), {})
    manifest = json.loads((model.path / MANIFEST).read_text())
    del manifest["parameters"], manifest["set"]
    (model.path / MANIFEST).write_text(json.dumps(manifest))
    declared = declare_model(read_manifest(model.path), open_repository(model.path))
    assert declared.repository.parameters["max_beam_width"] == "4"


@pytest.mark.parametrize("kind", kind_names())
def test_rendered_models_agree_in_all_parameters(home_folder: Path, tmp_path: Path, kind: str):
    engine = dataclasses.replace(ENGINE, kind=kind, llm_arguments={})
    if kind == "tensorrt":
        engine = tensorrt_engine(tmp_path)
    path = find_home().models / "mine"
    write_repository(plan_repository("mine", engine, ServingOptions()), path)
    model = read_manifest(path)
    assert declare_model(model, open_repository(path)).repository == RepositorySection()


def test_hostfile_is_relative_to_the_file(tmp_path: Path):
    text = "model: {name: mine}\nlaunch: {mode: mpi, world_size: 2, hostfile: hosts}\n"
    declared = parse_declaration(text, where="tllm.yaml", folder=tmp_path)
    assert declared.launch == {
        "mode": "mpi", "world_size": 2, "hostfile": tmp_path / "hosts",
    }  # fmt: skip
    plain = json.loads(json.dumps(plain_changes(declared)["launch"]))
    assert choose_options({}, {"mine": plain}) == LaunchOptions(
        mode="mpi", world_size=2, hostfile=tmp_path / "hosts"
    )


def test_manifest_without_a_declaration_is_declared(home_folder: Path):
    model = add_declared(find_home(), {})
    assert declare_model(model, open_repository(model.path)) == Declaration(
        ModelSection("mine", ENGINE.source), EngineSection("openvino")
    )


def test_triton_options_have_the_same_names_in_a_file(tmp_path: Path):
    text = (
        "model: {name: mine}\n"
        "launch: {model_control_mode: explicit, load_model: [mine], trace_config: [rate=1],\n"
        "  grpc_server_cert: s.crt, grpc_server_key: s.key, triton_args: [--log-info=no]}\n"
    )
    declared = parse_declaration(text, where="tllm.yaml", folder=tmp_path)
    plain = json.loads(json.dumps(plain_changes(declared)["launch"]))
    assert choose_options({}, {"mine": plain}) == LaunchOptions(
        model_control_mode="explicit",
        load_model=("mine",),
        trace_config=("rate=1",),
        grpc_server_cert=tmp_path / "s.crt",
        grpc_server_key=tmp_path / "s.key",
        triton_args=("--log-info=no",),
    )


def test_examples_and_calibration_folders_are_relative_to_the_file(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    text = "model: {name: m}\nengine: {examples: x}\nbuild: {calib_dataset: texts}\n"
    declared = parse_declaration(text, where="tllm.yaml", folder=tmp_path)
    assert (declared.engine.examples, declared.build.calib_dataset) == (
        tmp_path / "x",
        str(tmp_path / "texts"),
    )


def test_calibration_folder_may_be_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "texts").mkdir()
    text = "model: {name: m}\nbuild: {calib_dataset: ~/texts}\n"
    declared = parse_declaration(text, where="tllm.yaml", folder=tmp_path / "other")
    assert declared.build.calib_dataset == str(tmp_path / "texts")


def test_name_of_a_data_set_is_kept(tmp_path: Path):
    text = "model: {name: m}\nbuild: {calib_dataset: cnn_dailymail}\n"
    declared = parse_declaration(text, where="tllm.yaml", folder=tmp_path)
    assert declared.build.calib_dataset == "cnn_dailymail"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_queue_sise: 3", "The 'max_queue_sise' parameter does not exist."),
        ("max_queue_size: abc", "'abc' is not a valid value for the max_queue_size parameter."),
    ],
)
def test_mistakes_in_parameters_have_a_line(line: str, message: str, tmp_path: Path):
    text = f"model: {{name: m}}\nrepository:\n  parameters:\n    {line}\n"
    with pytest.raises(BadInput) as caught:
        parse_declaration(text, where="tllm.yaml", folder=tmp_path)
    assert caught.value.what == f"tllm.yaml, line 4: {message}"
