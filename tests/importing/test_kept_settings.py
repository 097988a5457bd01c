"""Settings of `tllm set` that a new import keeps, overrides or drops."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from tests.importing.running import Builder, run
from tests.samples.tensorrt_engines import write_engine as write_tensorrt_engine
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.importing.declaration import (
    Declaration,
    declare_model,
    parse_declaration,
    render_declaration,
)
from trtllm_serve_cli.importing.import_plan import plan_import
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.importing.sections import ModelSection, RepositorySection
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.store import MANIFEST, read_manifest
from trtllm_serve_cli.repository.settings.settings import (
    apply_changes,
    list_settings,
    plan_changes,
    write_changes,
)
from trtllm_serve_cli.repository.validation.validate import validate_repository


def change(path: Path, **settings: str) -> None:
    repository = open_repository(path)
    texts = apply_changes(repository, plan_changes(repository, settings))
    write_changes(repository, texts, settings)


def settings_of(path: Path) -> dict[str, tuple[str, str]]:
    """Return the value and origin of each parameter."""
    settings = list_settings(open_repository(path))
    return {each.parameter.name: (each.value, each.origin) for each in settings}


def changed_settings(path: Path) -> dict[str, tuple[str, str]]:
    """Return the settings that differ from the defaults."""
    settings = settings_of(path)
    return {each: settings[each] for each in settings if settings[each][1] in ("set", "import")}


@pytest.mark.parametrize("force", [False, True])
def test_reimport_keeps_settings(home: Home, builder: Builder, gguf: str, force: bool) -> None:
    run(home, builder, "mine", gguf, repository=RepositorySection(parameters={"num_threads": "1"}))
    change(home.models / "mine", max_queue_size="100", max_beam_width="2", engine_python="/py")
    before = changed_settings(home.models / "mine")
    served = RepositorySection(parameters={"num_threads": "1"})
    declaration = Declaration(ModelSection("mine", gguf), repository=served)
    line = "Kept settings: max_queue_size=100; max_beam_width=2; engine_python=/py"
    assert plan_import(declaration, home).preserved.describe() == [line]
    messages = run(home, builder, "mine", gguf, repository=served, force=force)
    assert (messages[-1], changed_settings(home.models / "mine")) == (line, before)
    assert run(home, builder, "mine", gguf, repository=served)[-1] == line


def test_settings_are_kept_if_the_manifest_cannot_be_read(
    home: Home, builder: Builder, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *arguments: Any, **options: Any) -> str:
        if path.name == MANIFEST:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_text(path, *arguments, **options)

    read_text = Path.read_text
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100")
    with monkeypatch.context() as patch, pytest.raises(RepositoryError) as caught:
        patch.setattr(Path, "read_text", fail)
        run(home, builder, "mine", gguf, force=True)
    assert (caught.value.what, caught.value.why, caught.value.next_step) == (
        f"{home.models / 'mine'} cannot be read.",
        "Permission denied",
        "check the disk, then check the permissions with "
        f"`ls -l {home.models / 'mine' / MANIFEST}`",
    )
    assert changed_settings(home.models / "mine") == {"max_queue_size": ("100", "set")}


def test_lost_settings_are_reported_if_the_manifest_is_invalid(
    home: Home, builder: Builder, gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100")
    manifest = home.models / "mine" / MANIFEST
    manifest.write_text(manifest.read_text()[:20])
    messages = run(home, builder, "mine", gguf, force=True)
    assert messages[-1].startswith(
        f"Dropped the settings of `tllm set`, because {manifest} is not valid JSON: "
    )
    assert changed_settings(home.models / "mine") == {}


def test_manifest_that_is_damaged_during_the_build_is_not_replaced(
    home: Home, builder: Builder, gguf: str
) -> None:
    def damage(*arguments: Any, **options: Any) -> Engine:
        manifest.write_text(manifest.read_text()[:20])
        return builder(*arguments, **options)

    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100")
    manifest = home.models / "mine" / MANIFEST
    declaration = Declaration(ModelSection("mine", gguf))
    with pytest.raises(RepositoryError, match="damaged during the import"):
        import_model(declaration, home, force=True, build=damage)
    assert len(manifest.read_text()) == 20


def test_settings_of_a_manifest_with_an_invalid_source_are_dropped(
    home: Home, builder: Builder, gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100")
    manifest = home.models / "mine" / MANIFEST
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "engine": {**facts["engine"], "source": "?"}}))
    assert run(home, builder, "mine", gguf, force=True)[-1] == (
        "Dropped settings that do not apply to this import: max_queue_size=100"
    )


def test_import_options_override_settings(home: Home, builder: Builder, gguf: str) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100", max_num_seqs="3", max_num_tokens="9")
    options = EngineOptions(max_batch_size=2)
    served = RepositorySection(parameters={"max_queue_size": "5"})
    messages = run(home, builder, "mine", gguf, build=options, repository=served)
    now = settings_of(home.models / "mine")
    assert messages[-1] == "Kept settings: max_num_tokens=9"
    assert [now[name] for name in ("max_queue_size", "max_num_seqs", "max_num_tokens")] == [
        ("5", "import"), ("2", "import"), ("9", "set"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "new", "problem"),
    [
        ({"priority_levels": "2", "default_priority_level": "2"}, {"priority_levels": "1"},
         "default_priority_level is 2, but priority_levels is 1."),
        ({"priority_levels": "1", "default_priority_level": "1"},
         {"default_priority_level": "3"},
         "default_priority_level is 3, but priority_levels is 1."),
    ],
)  # fmt: skip
def test_setting_that_contradicts_the_import_is_refused_before_the_build(
    home: Home, builder: Builder, gguf: str, kept: dict[str, str], new: dict[str, str], problem: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", **kept)
    num_built = builder.num_built
    with pytest.raises(BadInput, match=problem):
        run(
            home, builder, "mine", gguf, force=True,
            build=EngineOptions(max_batch_size=3), repository=RepositorySection(parameters=new),
        )  # fmt: skip
    assert builder.num_built == num_built


def test_setting_that_empties_a_parameter_is_kept(home: Home, builder: Builder, gguf: str) -> None:
    served = RepositorySection(parameters={"engine_python": "/py"})
    run(home, builder, "mine", gguf, repository=served)
    change(home.models / "mine", engine_python="")
    assert run(home, builder, "mine", gguf)[-1] == "Kept settings: engine_python="
    assert settings_of(home.models / "mine")["engine_python"] == ("", "unset")


def test_settings_of_another_source_are_dropped_and_reported(
    home: Home, builder: Builder, gguf: str, other_gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_beam_width="2")
    messages = run(home, builder, "mine", other_gguf, force=True)
    assert messages[-1] == ("Dropped settings that do not apply to this import: max_beam_width=2")
    assert settings_of(home.models / "mine")["max_beam_width"] == ("4", "default")


def test_tokenizer_dir_set_for_an_engine_is_kept(
    home: Home, builder: Builder, tmp_path: Path
) -> None:
    source = f"engine:{write_tokenizer(write_tensorrt_engine(tmp_path / 'engine'))}"
    run(home, builder, "mine", source)
    change(home.models / "mine", tokenizer_dir=str(write_tokenizer(tmp_path / "tok")))
    run(home, builder, "mine", source)
    assert settings_of(home.models / "mine")["tokenizer_dir"] == (str(tmp_path / "tok"), "set")


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_broken_repository_is_restored_by_the_suggested_command(
    home: Home, builder: Builder, gguf: str, tmp_path: Path, is_elsewhere: bool
) -> None:
    served = RepositorySection(
        dir=tmp_path / "a b" if is_elsewhere else None, parameters={"num_threads": "1"}
    )
    run(home, builder, "mine", gguf, build=EngineOptions(max_batch_size=2), repository=served)
    path = served.dir or home.models / "mine"
    change(path, max_beam_width="2", skip_special_tokens="false")
    before = {name: value for name, (value, _) in settings_of(path).items()}
    (path / "tensorrt_llm" / "config.pbtxt").unlink()

    target = f"--repo '{path}'" if is_elsewhere else "mine"
    findings = validate_repository(open_repository(path))
    assert [each.next_step for each in findings if each.what == "the file is missing"] == [
        f"run `tllm export {target} > mine.yaml && tllm import -f mine.yaml`"
    ]

    declared = render_declaration(declare_model(read_manifest(path), open_repository(path)))
    declaration = parse_declaration(declared, where="mine.yaml", folder=tmp_path)
    import_model(declaration, home, build=builder)
    assert {name: value for name, (value, _) in settings_of(path).items()} == before
    assert (validate_repository(open_repository(path)), builder.num_built) == ([], 1)
