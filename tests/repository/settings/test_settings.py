"""The values and origins of parameters in a repository on disk, and their changes."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path

import pytest

from tests.samples.builds import ENGINE
from tests.samples.repositories import UPSTREAM, copy_upstream
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.repository.model.model_repository import OpenRepository, open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.repository.settings.settings import (
    Change,
    apply_changes,
    list_settings,
    plan_changes,
    write_changes,
)
from trtllm_serve_cli.repository.validation.validate import validate_repository


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    options = ServingOptions(max_batch_size=8, parameters={"num_threads": "2"})
    write_repository(plan_repository("mine", ENGINE, options), tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_upstream(tmp_path / "copy")


def set_parameters(directory: Path, **requested: str) -> OpenRepository:
    repository = open_repository(directory)
    changes = plan_changes(repository, requested)
    write_changes(repository, apply_changes(repository, changes), requested)
    return open_repository(directory)


def origins(repository: OpenRepository) -> dict[str, tuple[str, str]]:
    return {each.parameter.name: (each.value, each.origin) for each in list_settings(repository)}


def test_change_applies_to_every_model_with_the_value(ours: Path) -> None:
    changes = plan_changes(open_repository(ours), {"bls_instance_count": "3"})
    place = "instance_group.count"
    assert changes == [
        Change("bls_instance_count", model, place, "1", "3")
        for model in ("ensemble", "mine", "tensorrt_llm_bls")
    ]


def test_change_edits_only_the_lines_of_the_value(ours: Path) -> None:
    before = open_repository(ours).texts
    after = set_parameters(ours, max_beam_width="2").texts
    entry = '"max_beam_width" value: { string_value: "4" }'
    assert entry in before["tensorrt_llm"]
    changed = {"tensorrt_llm": before["tensorrt_llm"].replace(entry, entry.replace("4", "2"))}
    assert after == {**before, **changed}
    assert sorted(path.name for path in ours.iterdir()) == sorted([*before, "tllm.json"])


def test_change_applies_to_every_field_of_a_parameter(tmp_path: Path) -> None:
    options = ServingOptions(max_batch_size=8, parameters={"max_queue_size": "2"})
    write_repository(plan_repository("mine", ENGINE, options), tmp_path / "mine")
    after = set_parameters(tmp_path / "mine", triton_max_batch_size="3")
    assert [each.what for each in validate_repository(after) if "batch" in each.what] == []
    assert after.value("tensorrt_llm", "dynamic_batching.preferred_batch_size") == "3"


def test_adds_a_missing_value(ours: Path) -> None:
    place = "dynamic_batching.priority_levels"
    changes = plan_changes(open_repository(ours), {"priority_levels": "5"})
    assert changes == [Change("priority_levels", "tensorrt_llm", place, None, "5")]
    after = set_parameters(ours, priority_levels="5", default_priority_level="2")
    assert after.value("tensorrt_llm", place) == "5"


def test_queue_timeout_allows_request_timeouts(ours: Path) -> None:
    policy = "dynamic_batching.default_queue_policy"
    own = Change("allow_timeout_override", "tensorrt_llm", f"{policy}.allow_timeout_override",
                 None, "true")  # fmt: skip
    for timeout in ("500", "600"):
        changes = plan_changes(
            open_repository(ours), {"default_timeout_microseconds": timeout, "max_queue_size": "5"}
        )
        assert (own in changes) == (timeout == "500")
        after = set_parameters(ours, default_timeout_microseconds=timeout)
        assert after.value("tensorrt_llm", f"{policy}.default_timeout_microseconds") == timeout
        assert after.value("tensorrt_llm", f"{policy}.allow_timeout_override") == "true"


@pytest.mark.parametrize("name", ["enable_kv_cache_reuse=TRUE", "max_queue_size=0"])
def test_setting_the_current_value_changes_nothing(ours: Path, name: str) -> None:
    assert plan_changes(open_repository(ours), dict([name.split("=")])) == []


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("max_beam", "1", "The 'max_beam' parameter does not exist."),
        ("max_beam_width", "0", "'0' is not a valid value for the max_beam_width parameter."),
        (
            "kv_cache_free_gpu_mem_fraction", "1.9",
            "'1.9' is not a valid value for the kv_cache_free_gpu_mem_fraction parameter.",
        ),
    ],
)  # fmt: skip
def test_rejects_invalid_parameters(ours: Path, name: str, value: str, what: str) -> None:
    with pytest.raises(BadInput) as raised:
        plan_changes(open_repository(ours), {name: value})
    assert raised.value.what == what


def test_parameter_without_effect_is_written_and_listed(ours: Path) -> None:
    after = set_parameters(ours, kv_cache_free_gpu_mem_fraction="0.9")
    place = "parameters.kv_cache_free_gpu_mem_fraction"
    assert after.value("tensorrt_llm", place) == "0.9"
    shown = {each.parameter.name: each.value for each in list_settings(after)}
    assert shown["kv_cache_free_gpu_mem_fraction"] == "0.9"
    assert "batch_scheduler_policy" not in shown


def test_rejects_a_value_beyond_the_engine(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "engine.json").write_text('{"vocab_size": 49152, "max_position_embeddings": 8192}')
    built = dataclasses.replace(ENGINE, path=engine)
    write_repository(plan_repository("mine", built, ServingOptions()), tmp_path / "mine")
    with pytest.raises(BadInput) as raised:
        set_parameters(tmp_path / "mine", max_seq_len="8193")
    assert str(raised.value) == (
        "The settings of mine cannot be changed.\n"
        "Why: after the change, max_seq_len is 8193, but the engine was built for 8192\n"
        f"Next: run `tllm set --repo {tmp_path / 'mine'} max_seq_len=8192`"
    )
    set_parameters(tmp_path / "mine", max_seq_len="4096")


def priorities(levels: int, usual: int) -> dict[str, str]:
    return {"priority_levels": str(levels), "default_priority_level": str(usual)}


@pytest.mark.parametrize(
    ("before", "requested", "error"),
    [
        (
            {}, {"default_priority_level": "3"},
            "default_priority_level is 3, but priority_levels is 0\n"
            "Next: run `tllm set --repo {ours} priority_levels=0 default_priority_level=0`",
        ),
        (
            priorities(5, 2), {"priority_levels": "1"},
            "default_priority_level is 2, but priority_levels is 1\n"
            "Next: run `tllm set --repo {ours} priority_levels=1 default_priority_level=1`",
        ),
        (
            {"instances_share_engine": "true", "tensorrt_llm_instance_count": "4"},
            priorities(2, 1),
            "tensorrt_llm_instance_count is 4, but a shared engine with queue priorities or "
            "timeouts requires a single instance\n"
            "Next: run `tllm set --repo {ours} tensorrt_llm_instance_count=1`",
        ),
    ],
)  # fmt: skip
def test_rejects_contradicting_values(
    ours: Path, before: dict[str, str], requested: dict[str, str], error: str
) -> None:
    set_parameters(ours, **before)
    files = {path: path.read_bytes() for path in ours.rglob("*") if path.is_file()}
    with pytest.raises(BadInput) as raised:
        set_parameters(ours, **requested)
    start = f"The settings of {ours.name} cannot be changed.\nWhy: after the change, "
    assert str(raised.value) == start + error.format(ours=ours)
    assert {path: path.read_bytes() for path in ours.rglob("*") if path.is_file()} == files


def test_existing_contradiction_does_not_block_other_settings(ours: Path) -> None:
    path = ours / "tensorrt_llm" / "config.pbtxt"
    path.write_text(path.read_text() + "dynamic_batching { priority_levels: 3 }\n")
    assert set_parameters(ours, max_queue_size="5").value("tensorrt_llm", "max_batch_size") == "8"
    after = set_parameters(ours, default_priority_level="3")
    assert not [each for each in validate_repository(after) if each.what.startswith("default_p")]


def test_template_can_be_filled_in_any_order(copy: Path) -> None:
    path = copy / "tensorrt_llm" / "config.pbtxt"
    path.write_text(
        path.read_text().replace(
            "dynamic_batching {",
            "dynamic_batching { priority_levels: ${priority_levels} "
            "default_priority_level: ${default_priority_level}",
        )
    )
    assert set_parameters(copy, default_priority_level="3")
    assert set_parameters(copy, priority_levels="3")


def test_lists_the_origin_of_each_value(ours: Path) -> None:
    set_parameters(ours, max_beam_width="2")
    path = ours / "tensorrt_llm" / "config.pbtxt"
    path.write_text(path.read_text().replace('"256"', '"300"'))
    found = origins(open_repository(ours))
    names = (
        "max_beam_width", "max_num_tokens", "triton_max_batch_size", "num_threads",
        "add_special_tokens", "engine_dir", "vocab_size", "max_seq_len", "engine_python",
    )  # fmt: skip
    assert {name: found[name] for name in names} == {
        "max_beam_width": ("2", "set"),
        "max_num_tokens": ("300", "file"),
        "triton_max_batch_size": ("8", "import"),
        "num_threads": ("2", "import"),
        "add_special_tokens": ("true", "default"),
        "engine_dir": ("/engines/mine", "engine"),
        "vocab_size": ("49152", "engine"),
        "max_seq_len": ("8192", "engine"),
        "engine_python": ("", "unset"),
    }


@pytest.mark.parametrize("kind", ["openvino", "sim", "vllm", "pytorch", "tensorrt"])
def test_new_repository_has_no_edited_value(kind: str, tmp_path: Path) -> None:
    """tllm's Python model always has the python backend, which no parameter chooses."""
    engine = dataclasses.replace(ENGINE, kind=kind)
    if kind == "tensorrt":
        engine = tensorrt_engine(tmp_path)
    write_repository(plan_repository("mine", engine, ServingOptions()), tmp_path / "mine")
    found = origins(open_repository(tmp_path / "mine"))
    assert [name for name, (_, origin) in found.items() if origin == "file"] == []
    assert ("triton_backend" in found) == (kind == "tensorrt")


def test_value_that_differs_between_models_is_listed_by_model(ours: Path) -> None:
    path = ours / "mine" / "config.pbtxt"
    path.write_text(path.read_text().replace("count: 1", "count: 2"))
    value, origin = origins(open_repository(ours))["bls_instance_count"]
    assert (value, origin) == ("ensemble: 1, mine: 2, tensorrt_llm_bls: 1", "file")


def test_manifest_records_settings(ours: Path) -> None:
    set_parameters(ours, max_beam_width="2")
    set_parameters(ours, enable_kv_cache_reuse="FALSE")
    manifest = json.loads((ours / "tllm.json").read_text())
    assert manifest["set"] == {"max_beam_width": "2", "enable_kv_cache_reuse": "false"}


def test_fills_a_template_variable_everywhere(copy: Path) -> None:
    after = set_parameters(copy, triton_max_batch_size="8")
    variable = "${triton_max_batch_size}"
    assert after.texts == {model: text.replace(variable, "8") for model, text in UPSTREAM.items()}


def test_fills_a_template_variable_under_another_key(copy: Path) -> None:
    path = copy / "tensorrt_llm" / "config.pbtxt"
    path.write_text(path.read_text().replace('"gpt_model_path"', '"engine_dir"'))
    changes = plan_changes(open_repository(copy), {"engine_dir": "/e"})
    assert changes == [Change("engine_dir", "tensorrt_llm", "${engine_dir}", "${engine_dir}", "/e")]
    assert (
        '"engine_dir" value: { string_value: "/e" }'
        in (set_parameters(copy, engine_dir="/e").texts["tensorrt_llm"])
    )


def test_adds_a_parameter_that_an_older_copy_lacks(copy: Path) -> None:
    after = set_parameters(copy, kv_cache_free_gpu_mem_fraction="0.9")
    assert after.texts["tensorrt_llm"] == UPSTREAM["tensorrt_llm"] + (
        'parameters { key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.9" } }\n'
    )


def test_does_not_add_a_tensor_that_a_copy_lacks(copy: Path) -> None:
    with pytest.raises(BadInput, match="The logits_datatype parameter cannot be set in"):
        plan_changes(open_repository(copy), {"logits_datatype": "TYPE_FP16"})


def test_lists_origins_in_an_upstream_copy(copy: Path) -> None:
    found = origins(set_parameters(copy, max_beam_width="2"))
    assert (found["max_beam_width"], found["engine_dir"]) == (
        ("2", "file"), ("${engine_dir}", "unset"),
    )  # fmt: skip


@pytest.mark.parametrize("broken", ["max_batch_size: {", "max_batchsize: 8"])
def test_does_not_change_a_broken_file(ours: Path, broken: str) -> None:
    path = ours / "tensorrt_llm" / "config.pbtxt"
    path.write_text(broken + "\n" + path.read_text())
    with pytest.raises(RepositoryError, match=r"tensorrt_llm/config\.pbtxt, line \d+: "):
        set_parameters(ours, max_beam_width="2")
    assert path.read_text().startswith(broken)


def test_disk_error_changes_no_file(ours: Path) -> None:
    repository = open_repository(ours)
    with pytest.raises(FileNotFoundError):
        write_changes(repository, {"tensorrt_llm": "new", "gone": "new"}, {})
    assert open_repository(ours) == repository
    assert [path.name for path in ours.rglob(".config*")] == []


def test_rejects_a_write_over_a_concurrent_change(ours: Path) -> None:
    repository = open_repository(ours)
    changes = plan_changes(repository, {"max_beam_width": "2"})
    set_parameters(ours, num_threads="7")
    with pytest.raises(RepositoryError, match="has changed since this command read it"):
        write_changes(repository, apply_changes(repository, changes), {"max_beam_width": "2"})
    assert origins(open_repository(ours))["num_threads"] == ("7", "set")
    assert [path.name for path in ours.rglob(".*")] == []


def test_rejects_a_folder_without_models(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="is not a model repository") as caught:
        open_repository(tmp_path)
    assert caught.value.why == "no subfolder contains a config.pbtxt file"
    with pytest.raises(RepositoryError, match="is not a model repository") as caught:
        open_repository(tmp_path / "missing")
    assert caught.value.why == "the folder does not exist"


def test_rejects_a_file_that_is_not_text(copy: Path) -> None:
    (copy / "ensemble" / "config.pbtxt").write_bytes(b"\xff")
    with pytest.raises(RepositoryError, match="cannot be read"):
        open_repository(copy)


def test_error_names_the_settings_file_of_other_layouts(tmp_path: Path) -> None:
    options = ServingOptions(layout="llmapi")
    write_repository(plan_repository("mine", ENGINE, options), tmp_path / "mine")
    repository = open_repository(tmp_path / "mine")
    for call in (list_settings, partial(plan_changes, requested={"max_beam_width": "2"})):
        with pytest.raises(BadInput) as raised:
            call(repository)
        assert str(raised.value) == (
            "The settings of mine are not stored in config.pbtxt files.\n"
            "Why: the llmapi layout stores the engine arguments in model.yaml\n"
            f"Next: edit {tmp_path / 'mine/tensorrt_llm/1/model.yaml'}, "
            "then restart the server"
        )


def test_sets_a_variable_that_only_older_templates_have(tmp_path: Path) -> None:
    copy = copy_upstream(tmp_path / "copy")
    config = copy / "preprocessing" / "config.pbtxt"
    with config.open("a") as stream:
        stream.write(
            'parameters { key: "tokenizer_type" value { string_value: "${tokenizer_type}" } }\n'
        )
    repository = open_repository(copy)
    changes = plan_changes(repository, {"tokenizer_type": "llama"})
    assert 'string_value: "llama"' in apply_changes(repository, changes)["preprocessing"]


def test_upstreams_python_model_is_rejected_in_a_rendered_repository(tmp_path: Path) -> None:
    options = ServingOptions(parameters={"tokenizer_dir": str(tmp_path / "tokenizer")})
    plan = plan_repository("mine", tensorrt_engine(tmp_path), options)
    write_repository(plan, tmp_path / "mine")
    repository = open_repository(tmp_path / "mine")
    changes = plan_changes(repository, {"triton_backend": "python"})
    with pytest.raises(BadInput, match="does not contain NVIDIA's Python model"):
        apply_changes(repository, changes)
