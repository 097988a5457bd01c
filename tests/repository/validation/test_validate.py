"""The findings for broken repositories."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.samples.builds import ENGINE
from tests.samples.repositories import add_model, copy_upstream, tensor
from tests.samples.tensorrt_engines import tensorrt_engine, write_tokenizer
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.parameters import load_parameters
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.model.runtime_copy import plan_runtime_update, update_runtime
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import apply_changes, plan_changes, write_changes
from trtllm_serve_cli.repository.validation.validate import validate_repository

Found = list[tuple[str, str, int | None, str]]


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return add_model(Home(tmp_path, tmp_path / "engines"), "mine").path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a filled copy of upstream's repository, with an engine and a tokenizer."""
    engine = tmp_path / "engine"
    engine.mkdir()
    limits = {"max_batch_size": 8, "max_beam_width": 2, "max_seq_len": 64}
    model = {"vocab_size": 4, "mapping": {"world_size": 1}}
    config = {"pretrained_config": model, "build_config": limits}
    (engine / "config.json").write_text(json.dumps(config))
    (engine / "rank0.engine").touch()
    vocabulary = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 3}]}
    (engine / "tokenizer.json").write_text(json.dumps(vocabulary))
    copy = copy_upstream(tmp_path / "copy")
    requested = {
        "triton_max_batch_size": "8", "tokenizer_dir": str(engine), "engine_dir": str(engine),
        "preprocessing_instance_count": "5", "decoupled_mode": "true", "max_beam_width": "2",
        "triton_backend": "tensorrtllm", "batching_strategy": "inflight_fused_batching",
    }  # fmt: skip
    repository = open_repository(copy)
    changes = plan_changes(repository, requested)
    write_changes(repository, apply_changes(repository, changes), requested)
    return copy


def findings(directory: Path, *, lacks: bool = False) -> Found:
    """Return the findings with relative paths, and with missing tensors only if `lacks` is set."""
    found = validate_repository(open_repository(directory))
    return [
        (each.severity, str(each.path).removeprefix(f"{directory}/"), each.line, each.what)
        for each in found
        if lacks or not each.what.startswith("the model lacks")
    ]


def edit(directory: Path, model: str, old: str, new: str) -> None:
    path = directory / model / "config.pbtxt"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_rendered_repository_is_valid(ours: Path) -> None:
    assert findings(ours, lacks=True) == []


def test_filled_upstream_copy_is_valid(copy: Path) -> None:
    assert findings(copy) == []


def test_text_models_of_earlier_versions_may_lack_stop(ours: Path) -> None:
    path = ours / "mine" / "config.pbtxt"
    text, count = re.subn(r',\n  {\n    name: "stop"[^}]*}', "", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    assert (count, findings(ours, lacks=True)) == (1, [])


@pytest.mark.parametrize(
    ("model", "old", "new", "found"),
    [
        (
            "mine", "max_batch_size", "max_batchsize",
            ("error", 4, 'Triton cannot read the file: Message type "inference.ModelConfig" has '
                         'no field named "max_batchsize".'),
        ),
        ("mine", 'name: "mine"', 'name: "yours"',
         ("error", 2, "the model is named yours, but its folder is named mine")),
        ("mine", '"tensorrt_llm_model_name" value: { string_value: "tensorrt_llm"',
         '"tensorrt_llm_model_name" value: { string_value: "llm"',
         ("error", None, "the model calls the llm model, which does not exist")),
        ("preprocessing", "TYPE_STRING", "TYPE_INT8",
         ("error", None, "the QUERY input is TYPE_INT8, but clients expect TYPE_STRING")),
        ("postprocessing", '"OUTPUT"', '"TEXT"',
         ("error", None, "the model lacks 1 output that clients may use: OUTPUT")),
        ("tensorrt_llm", '"max_beam_width" value: { string_value: "4"',
         '"max_beam_width" value: { string_value: "many"',
         ("error", None, "max_beam_width has the invalid value 'many'")),
        ("tensorrt_llm", '"num_threads"', '"num_thread"',
         ("warning", None, "num_thread is not a known parameter")),
        ("tensorrt_llm", '"num_threads"', '"gpu_device_ids"',
         ("warning", None, "gpu_device_ids has no effect on the openvino engine kind")),
        ("tensorrt_llm", "max_batch_size: 64",
         "max_batch_size: 32 dynamic_batching { preferred_batch_size: 64 }",
         ("error", None, "the preferred batch size is 64, but max_batch_size is 32")),
        ("tensorrt_llm", "max_batch_size: 64",
         "max_batch_size: 64 dynamic_batching { priority_levels: 2 }",
         ("error", None, "default_priority_level is 0, but priority_levels is 2")),
        ("tensorrt_llm", "count: 1", "count: ${n}", ("error", None, "${n} is not filled in")),
        ("mine", 'key: "tokenizer_dir" value: { string_value: "',
         'key: "tokenizer_dir" value: { string_value: "/no',
         ("error", None, "tokenizer_dir is /no")),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)  # fmt: skip
def test_finds_an_invalid_edit(
    ours: Path, model: str, old: str, new: str, found: tuple[str, int | None, str]
) -> None:
    edit(ours, model, old, new)
    severity, line, what = found
    matching = [
        each for each in findings(ours, lacks=True)
        if each[:2] == (severity, f"{model}/config.pbtxt") and each[3].startswith(what)
    ]  # fmt: skip
    assert len(matching) == 1
    assert matching[0][2] == line if line else True


@pytest.mark.parametrize(
    ("remove", "found"),
    [
        ("mine/1/tllm_runtime", ("mine/1/tllm_runtime", "the folder is missing")),
        ("mine/1/model.py", ("mine/1/model.py", "the file is missing")),
        ("mine/1", ("mine", "the model has no version folder")),
    ],
)
def test_finds_missing_code(ours: Path, remove: str, found: tuple[str, str]) -> None:
    path = ours / remove
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert findings(ours) == [("error", found[0], None, found[1])]


@pytest.mark.whole_runtime
def test_missing_runtime_is_restored_by_an_update(ours: Path) -> None:
    shutil.rmtree(ours / "mine" / "1" / "tllm_runtime")
    repository = open_repository(ours)
    (finding,) = validate_repository(repository)
    assert finding.next_step == f"run `tllm update {repository.target}`"
    update_runtime(plan_runtime_update(repository))
    assert findings(ours) == []


def test_next_step_quotes_the_folder(tmp_path: Path) -> None:
    copy = copy_upstream(tmp_path / "my repo")
    (copy / "tensorrt_llm" / "1").rmdir()
    found = {each.what: each.next_step for each in validate_repository(open_repository(copy))}
    assert found["the model has no version folder"] == f"run `mkdir '{copy}/tensorrt_llm/1'`"


def test_finds_a_missing_model(ours: Path) -> None:
    shutil.rmtree(ours / "preprocessing")
    reference_error = "the model calls the preprocessing model, which does not exist"
    assert [each for each in findings(ours) if each[3] != reference_error] == [
        ("error", "preprocessing/config.pbtxt", None, "the file is missing")
    ]


def test_unfilled_template_lists_the_variables_to_fill(tmp_path: Path) -> None:
    copy = copy_upstream(tmp_path / "copy")
    found = validate_repository(open_repository(copy))
    unfilled = [each for each in found if each.path.parent.name == "preprocessing"]
    assert [(each.line, each.what, each.next_step) for each in unfilled if each.line] == [
        (4, "${triton_max_batch_size} is not filled in",
         f"run `tllm set --repo {copy} triton_max_batch_size=N`"),
        (10, "${tokenizer_dir} is not filled in",
         f"run `tllm set --repo {copy} tokenizer_dir=PATH`"),
        (13, "${preprocessing_instance_count} is not filled in",
         f"run `tllm set --repo {copy} preprocessing_instance_count=N`"),
    ]  # fmt: skip


def unquoted(name: str, place: str) -> str:
    """Return a field whose value is an unquoted variable."""
    if place.startswith("parameters."):
        key = place.removeprefix("parameters.")
        return f'parameters {{ key: "{key}" value {{ string_value: ${{{name}}} }} }}\n'
    first, *fields = place.split(".")
    if first in ("input", "output"):
        return f'{first} {{ name: "{fields[0]}" {fields[1]}: ${{{name}}} dims: [ -1 ] }}\n'
    if fields:
        return f"{first} {{ {unquoted(name, '.'.join(fields))} }}\n"
    return f"{first}: ${{{name}}}\n"


@pytest.mark.parametrize("name", load_parameters())
def test_finds_an_unquoted_variable_of_any_parameter(tmp_path: Path, name: str) -> None:
    # Parameters for another layout have no field, but may be in a config.pbtxt by mistake.
    fills = {
        role: places
        for role, places in load_parameters()[name].fills.items()
        if not role.startswith("gpt/")
    }
    if not fills:
        is_type = load_parameters()[name].type == "choice"
        fills = {"tensorrt_llm": ("input.end_id.data_type" if is_type else "max_batch_size",)}
    for model, places in fills.items():
        (tmp_path / model / "1").mkdir(parents=True)
        lines = "".join(unquoted(name, place) for place in places)
        (tmp_path / model / "config.pbtxt").write_text(f'name: "{model}"\n{lines}')
    found = findings(tmp_path, lacks=True)
    for model in fills:
        filled = ("error", f"{model}/config.pbtxt", 2, f"${{{name}}} is not filled in")
        assert filled in found
    assert not [each for each in found if each[3].startswith("Triton cannot read the file")]


STEP = "ensemble/config.pbtxt"


@pytest.mark.parametrize(
    ("model", "old", "new", "found"),
    [
        ("ensemble", 'value: "_IDS" }\n    output', 'value: "_ID" }\n    output',
         ("error", STEP, 15,
          "no input or step of the ensemble produces _IDS for the input_ids input of "
          "tensorrt_llm")),
        ("ensemble", 'key: "QUERY"', 'key: "QUERRY"',
         ("error", STEP, 8, "preprocessing has no input named QUERRY")),
        ("ensemble", '    input_map { key: "QUERY" value: "text_input" }\n', "",
         ("error", STEP, 8,
          "preprocessing requires the QUERY input, but no input_map sets it")),
        ("ensemble", 'key: "batch_index"', 'key: "index"',
         ("error", STEP, 15, "tensorrt_llm has no output named index")),
        ("ensemble", 'key: "batch_index" value: "batch_index"',
         'key: "batch_index" value: "_IDS"',
         ("error", STEP, 15, "tensorrt_llm sets _IDS, which is already set by another output")),
        ("ensemble", 'key: "batch_index" value: "batch_index"',
         'key: "batch_index" value: "unused"',
         ("error", STEP, 15, "tensorrt_llm sets unused, which is not used")),
        ("ensemble", '    input_map { key: "QUERY" value: "text_input" }\n', "",
         ("error", STEP, 4, "no step uses the ensemble's text_input input")),
        ("ensemble", 'model_name: "tensorrt_llm"', 'model_name: "llm"',
         ("error", STEP, 15, "a step calls the llm model, which does not exist")),
        ("ensemble", '"max_tokens" data_type: TYPE_INT32', '"max_tokens" data_type: TYPE_INT64',
         ("error", STEP, 8, "the REQUEST_OUTPUT_LEN input of preprocessing is TYPE_INT32, but the "
          "ensemble's max_tokens input is TYPE_INT64")),
        ("ensemble", "max_batch_size: 8", "max_batch_size: 9",
         ("error", STEP, 3,
          "max_batch_size is 9, but the max_batch_size of the preprocessing step is 8")),
        ("tensorrt_llm", 'string_value: "2"', 'string_value: "3"',
         ("error", "tensorrt_llm/config.pbtxt", 12,
          "max_beam_width is 3, but the engine was built for 2")),
        ("tensorrt_llm", 'string_value: "2"', f'string_value: "{"9" * 5000}"',
         ("warning", "tensorrt_llm/config.pbtxt", 12,
          f"max_beam_width has the invalid value '{'9' * 40}', so Triton uses the default, 1")),
        ("tensorrt_llm", 'string_value: "2"', 'string_value: "two"',
         ("warning", "tensorrt_llm/config.pbtxt", 12,
          "max_beam_width has the invalid value 'two', so Triton uses the default, 1")),
        ("tensorrt_llm", "inflight_fused_batching", "v2",
         ("error", "tensorrt_llm/config.pbtxt", 11,
          "batching_strategy has the invalid value 'v2'")),
    ],
)  # fmt: skip
def test_finds_a_broken_ensemble(
    copy: Path, model: str, old: str, new: str, found: tuple[str, str, int | None, str]
) -> None:
    edit(copy, model, old, new)
    assert found in findings(copy)


def test_missing_model_of_a_step_yields_one_error(copy: Path) -> None:
    edit(copy, "ensemble", 'model_name: "preprocessing"', 'model_name: "reprocessing"')
    found, *others = validate_repository(open_repository(copy))
    assert {each.severity for each in others} == {"warning"}
    assert (found.line, found.what, found.next_step) == (
        8, "a step calls the reprocessing model, which does not exist",
        "use preprocessing instead",
    )  # fmt: skip


def test_one_model_layout_is_not_checked_against_the_contract(tmp_path: Path) -> None:
    model = tmp_path / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(f"""\
name: "tensorrt_llm"
backend: "other"
max_batch_size: 8
input [ {tensor("text_input", "TYPE_STRING")} ]
output [ {tensor("text_output", "TYPE_STRING")} ]
""")
    assert findings(tmp_path, lacks=True) == [
        ("error", "tensorrt_llm/config.pbtxt", 2, "triton_backend has the invalid value 'other'")
    ]


def test_warns_about_a_single_instance(copy: Path) -> None:
    edit(copy, "preprocessing", "count: 5", "count: 1")
    assert findings(copy) == [
        ("warning", "preprocessing/config.pbtxt", 13,
         "the model's only instance processes one request at a time, but the engine's maximum "
         "batch size is 8"),
    ]  # fmt: skip


def change_json(path: Path, change: Callable[[dict], None]) -> None:
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def test_finds_the_tokenizer_of_another_model(copy: Path) -> None:
    change_json(
        copy.parent / "engine" / "tokenizer.json",
        lambda facts: facts["added_tokens"].append({"id": 4}),
    )
    assert findings(copy) == [
        ("error", "preprocessing/config.pbtxt", 10,
         "the tokenizer has 5 tokens, but the engine's vocabulary has 4"),
    ]  # fmt: skip


def test_finds_a_missing_rank(copy: Path) -> None:
    config = copy.parent / "engine" / "config.json"
    change_json(config, lambda facts: facts["pretrained_config"]["mapping"].update(world_size=2))
    assert findings(copy) == [
        (
            "error",
            str(config),
            None,
            "the engine's world size is 2, but the number of rank*.engine files is 1",
        )
    ]


def test_finds_an_instance_with_too_few_gpus(copy: Path) -> None:
    engine = copy.parent / "engine"
    change_json(
        engine / "config.json",
        lambda facts: facts["pretrained_config"]["mapping"].update(world_size=2),
    )
    (engine / "rank1.engine").touch()
    repository = open_repository(copy)
    requested = {"gpu_device_ids": "0,1;2"}
    write_changes(
        repository, apply_changes(repository, plan_changes(repository, requested)), requested
    )
    (found,) = (
        each
        for each in validate_repository(open_repository(copy))
        if each.what.startswith("gpu_device_ids")
    )
    assert found.what == "gpu_device_ids contains the group 2, but the engine's world size is 2"
    assert found.next_step == f'run `tllm set --repo {copy} "gpu_device_ids=0,1;2,3"`'


def test_finds_an_engine_with_another_vocabulary(ours: Path) -> None:
    engine = ours.parents[1] / "engines" / "mine"
    facts = {"vocab_size": 7, "max_position_embeddings": 16}
    (engine / "engine.json").write_text(json.dumps(facts))
    assert {each[3] for each in findings(ours)} == {
        "max_seq_len is 8192, but the engine was built for 16",
        "vocab_size is 49152, but the engine's vocabulary has 7 tokens",
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", pytest.param("[" * 100_000, id="nested"), '{"model": null}',
     '{"build_config": null}', '{"build_config": [], "model": 1}',
     '{"build_config": {"a": 1}, "pretrained_config": 3, "added_tokens": 3}'],
)  # fmt: skip
def test_ignores_engine_files_without_known_fields(copy: Path, text: str) -> None:
    for name in ("config.json", "tokenizer.json"):
        (copy.parent / "engine" / name).write_text(text)
    assert findings(copy) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_arbitrary_edits_raise_no_error(copy: Path, data: st.DataObject) -> None:
    """Validation of an edited file does not raise an error."""
    path = copy / data.draw(st.sampled_from(["tensorrt_llm", "ensemble", "preprocessing"]))
    config = path / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 40)))
    insertion = data.draw(st.sampled_from(["", "{", "}", "]", '"', "${x}", "#", "name: 1", "\\x"]))
    try:
        config.write_text(text[:start] + insertion + text[end:], encoding="utf-8")
        findings(copy, lacks=True)
    finally:
        config.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("layout", ["inflight", "llmapi", "vllm"])
def test_new_repository_of_any_layout_is_valid(tmp_path: Path, layout: Layout) -> None:
    write_tokenizer(tmp_path)
    engine = replace(ENGINE, path=tmp_path, kind="vllm" if layout == "vllm" else ENGINE.kind)
    plan = plan_repository("mine", engine, ServingOptions(layout=layout))
    write_repository(plan, tmp_path / "mine")
    assert findings(tmp_path / "mine") == []


@pytest.mark.parametrize("version", ["0.8.0", "0.13.0", "1.1.0"])
def test_new_repository_of_a_tensorrt_engine_is_valid(tmp_path: Path, version: str) -> None:
    engine = tensorrt_engine(tmp_path, version)
    options = ServingOptions(parameters={"tokenizer_dir": str(tmp_path / "tokenizer")})
    write_repository(plan_repository("mine", engine, options), tmp_path / "mine")
    assert findings(tmp_path / "mine") == []


def test_engine_of_another_version_contradicts_the_tensors(tmp_path: Path) -> None:
    options = ServingOptions(parameters={"tokenizer_dir": str(tmp_path / "tokenizer")})
    engine = tensorrt_engine(tmp_path, "0.9.0")
    write_repository(plan_repository("mine", engine, options), tmp_path / "mine")
    tensorrt_engine(tmp_path, "1.1.0")
    found = [each for each in findings(tmp_path / "mine") if each[0] == "error"]
    assert [(path, what) for _, path, _, what in found] == [
        (
            f"{model}/config.pbtxt",
            "the model's tensors match TensorRT-LLM 0.9.0, but the engine was built with 1.1.0",
        )
        for model in ("ensemble", "mine", "tensorrt_llm_bls")
    ]


def test_invalid_plugins_of_an_engine_are_unknown(tmp_path: Path) -> None:
    options = ServingOptions(parameters={"tokenizer_dir": str(tmp_path / "tokenizer")})
    engine = tensorrt_engine(tmp_path)
    write_repository(plan_repository("mine", engine, options), tmp_path / "mine")
    path = engine.path / "config.json"
    config = json.loads(path.read_text())
    config["build_config"]["plugin_config"] = ["paged_kv_cache"]
    path.write_text(json.dumps(config))
    assert findings(tmp_path / "mine") == []


def test_reuse_needs_an_engine_with_paged_context(tmp_path: Path) -> None:
    options = ServingOptions(parameters={"tokenizer_dir": str(tmp_path / "tokenizer")})
    engine = tensorrt_engine(tmp_path, plugin_config={"use_paged_context_fmha": True})
    write_repository(plan_repository("mine", engine, options), tmp_path / "mine")
    assert findings(tmp_path / "mine") == []
    tensorrt_engine(tmp_path, plugin_config={"use_paged_context_fmha": False})
    (found,) = findings(tmp_path / "mine")
    assert found[3] == (
        "enable_kv_cache_reuse is true, but the engine was built without use_paged_context_fmha"
    )
