"""Imports that use an existing engine, or an engine that another import builds."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.importing.running import Builder, run
from tests.waiting import wait_until
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.import_plan import plan_import
from trtllm_serve_cli.importing.importer import Display, import_model
from trtllm_serve_cli.importing.sections import ModelSection, RepositorySection
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.store import load_model, read_manifest
from trtllm_serve_cli.repository.settings.engine_references import find_users


def test_second_import_reuses_the_engine(home: Home, builder: Builder, gguf: str) -> None:
    run(home, builder, "mine", gguf)
    run(home, builder, "mine", None)
    assert builder.num_built == 1


def test_force_rebuilds(home: Home, builder: Builder, gguf: str) -> None:
    run(home, builder, "mine", gguf)
    run(home, builder, "mine", gguf, force=True)
    assert builder.num_built == 2


def test_models_with_the_same_plan_share_the_engine(
    home: Home, builder: Builder, gguf: str
) -> None:
    for name in ("one", "two"):
        run(home, builder, name, gguf)
    paths = [load_model(home, name).engine_path for name in ("one", "two")]
    assert (builder.num_built, paths[0]) == (1, paths[1])


def test_plan_reports_an_existing_engine(home: Home, builder: Builder, gguf: str) -> None:
    declaration = Declaration(ModelSection("other", gguf))
    assert not plan_import(declaration, home).is_built
    run(home, builder, "mine", gguf)
    plan = plan_import(declaration, home)
    assert (plan.is_built, plan.as_dict()["is_built"]) == (True, True)
    assert plan.describe().splitlines()[2:4] == [
        f"Using the existing engine: {load_model(home, 'mine').engine_path}",
        "With --force, the engine is rebuilt:",
    ]


def test_repository_in_another_folder_keeps_its_engine(
    home: Home, builder: Builder, gguf: str, tmp_path: Path
) -> None:
    run(home, builder, "mine", gguf, repository=RepositorySection(dir=tmp_path / "r"))
    engine = read_manifest(tmp_path / "r").engine_path
    assert find_users(home) == {engine: [tmp_path / "r"]}


def test_relative_path_of_the_same_file_reuses_the_engine(
    home: Home, builder: Builder, gguf: str, monkeypatch, tmp_path: Path
) -> None:
    run(home, builder, "mine", gguf)
    monkeypatch.chdir(tmp_path)
    run(home, builder, "mine", "gguf:mine.gguf")
    assert builder.num_built == 1


def test_concurrent_import_waits_and_reuses_the_engine(
    home: Home, builder: Builder, gguf: str
) -> None:
    builder.is_free.clear()
    messages: list[list[str]] = [[], []]
    threads = []
    for received in messages:
        options = {"display": Display(received.append), "build": builder}
        request = Declaration(ModelSection("mine", gguf))
        threads.append(threading.Thread(target=import_model, args=(request, home), kwargs=options))
        threads[-1].start()
        wait_until(lambda received=received: received)
    builder.is_free.set()
    for thread in threads:
        thread.join()
    assert messages[1][0] == (
        "Waiting for another tllm process that is importing or building mine …"
    )
    assert (len(messages[0]), len(messages[1]), builder.num_built) == (1, 2, 1)


def test_concurrent_import_under_another_name_waits_for_the_engine(
    home: Home, builder: Builder, gguf: str
) -> None:
    builder.is_free.clear()
    messages: dict[str, list[str]] = {"one": [], "two": []}
    threads = []
    for name, received in messages.items():
        options = {"display": Display(received.append), "build": builder}
        declaration = Declaration(ModelSection(name, gguf))
        threads.append(
            threading.Thread(target=import_model, args=(declaration, home), kwargs=options)
        )
        threads[-1].start()
        wait_until(
            lambda name=name: builder.is_waiting if name == "one" else len(messages["two"]) == 2
        )
    builder.is_free.set()
    for thread in threads:
        thread.join()
    assert messages["two"][1] == "Waiting for another tllm process that is building this engine …"
    assert builder.num_built == 1
