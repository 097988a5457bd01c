"""The folders of TLLM_HOME, which never contain incomplete files."""

from __future__ import annotations

import ctypes
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import (
    Home,
    check_can_create,
    check_model_name,
    expand_user,
    find_home,
    link_files,
    make_folder,
    put_in_place,
    remove_folder,
    write_aside,
    write_text,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_links_to_the_home_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    environ = {
        "TLLM_HOME": str(tmp_path / "link" / "home"),
        "ENGINE_DEST_PATH": str(tmp_path / "x" / ".." / "engines"),
    }
    assert find_home(environ) == Home(tmp_path / "home", tmp_path / "engines")


def test_links_to_the_user_data_folder_are_resolved(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "tllm").mkdir()
    (tmp_path / "fast").mkdir()
    (tmp_path / "tllm" / "engines").symlink_to(tmp_path / "fast")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "link"))
    assert find_home({}) == Home(tmp_path / "tllm", tmp_path / "fast")


def test_home_from_the_environment() -> None:
    home = find_home({"TLLM_HOME": "/data/tllm", "ENGINE_DEST_PATH": "/fast"})
    assert home == Home(Path("/data/tllm"), Path("/fast"))


def test_engines_are_in_the_home_by_default() -> None:
    home = find_home({"TLLM_HOME": "/data/tllm"})
    folders = (home.engines, home.checkpoints, home.models, home.servers, home.locks)
    assert [str(path.relative_to("/data/tllm")) for path in folders] == [
        "engines", "checkpoints", "models", "servers", "locks",
    ]  # fmt: skip


def test_default_home_is_the_user_data_folder() -> None:
    home = find_home({})
    assert home.root.is_absolute()
    assert home.root.name == "tllm"


def test_user_without_a_home_directory_must_set_the_home(monkeypatch) -> None:
    def fail(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", fail)
    with pytest.raises(BadInput) as raised:
        find_home({})
    assert raised.value.next_step == "set TLLM_HOME to a folder that you can write to"
    assert find_home({"TLLM_HOME": "/data"}).root == Path("/data")


def test_relative_home_starts_at_the_working_directory(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_home({"TLLM_HOME": "here"}).root == tmp_path / "here"


@pytest.mark.parametrize("name", ["demo", "llama-3.1-8b", "a_b", "7b", "x" * 128])
def test_valid_model_name(name: str) -> None:
    assert check_model_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "-m", ".hidden", "a b", "é", "a\n", "x" * 129]
)
def test_invalid_model_name(name: str) -> None:
    with pytest.raises(BadInput, match="is not a valid model name"):
        check_model_name(name)


@given(st.text(max_size=20))
def test_accepted_name_never_leaves_its_folder(name: str) -> None:
    try:
        path = Path("/models") / check_model_name(name)
    except BadInput:
        return
    assert path.parent == Path("/models")


def test_written_folder_appears_whole(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "final"
    with write_aside(final) as aside:
        (aside / "file").write_text("new")
        assert not final.exists()
    assert (final / "file").read_text() == "new"
    assert names_in(final.parent) == ["final"]


def test_written_folder_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").touch()
    with write_aside(tmp_path / "final") as aside:
        (aside / "new").touch()
    assert (names_in(tmp_path), names_in(tmp_path / "final")) == (["final"], ["new"])


def test_written_folder_replaces_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "old").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with write_aside(tmp_path / "link") as aside:
        (aside / "new").touch()
    assert (tmp_path / "link").is_symlink()
    assert (names_in(tmp_path), names_in(tmp_path / "disk")) == (["disk", "link"], ["new"])


@pytest.mark.parametrize("number", [0, errno.EPERM, errno.ENOSPC])
def test_linked_files_have_the_content_and_permissions_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("text")
    (source / "deep" / "file").chmod(0o640)
    (source / "deep").chmod(0o750)
    (source / "link").symlink_to("missing")
    target.mkdir()
    if number:
        monkeypatch.setattr(os, "link", link)
    if number == errno.ENOSPC:
        with pytest.raises(OSError, match="No space left"):
            link_files(source, target)
        return
    link_files(source, target)
    file = target / "deep" / "file"
    assert (file.read_text(), names_in(target)) == ("text", ["deep", "link"])
    assert file.samefile(source / "deep" / "file") == (number == 0)
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o640, 0o750]
    assert (target / "link").readlink() == Path("missing")


def test_failure_keeps_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").touch()
    with pytest.raises(KeyboardInterrupt), write_aside(tmp_path / "final") as aside:
        (aside / "new").touch()
        raise KeyboardInterrupt
    assert (names_in(tmp_path), names_in(tmp_path / "final")) == (["final"], ["old"])


def test_failed_replacement_restores_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").touch()
    with pytest.raises(FileNotFoundError), write_aside(tmp_path / "final") as aside:
        aside.rmdir()
    assert (names_in(tmp_path), names_in(tmp_path / "final")) == (["final"], ["old"])


@pytest.mark.parametrize("can_exchange", [True, False])
def test_replaced_folder_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: object())
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    put_in_place(tmp_path / "new", tmp_path / "old")
    assert (names_in(tmp_path), names_in(tmp_path / "old")) == (["old"], ["new"])


@pytest.mark.parametrize("name", ["final", "a[b]", "*"])
def test_write_removes_leftovers_of_a_killed_one(tmp_path: Path, name: str) -> None:
    (tmp_path / f".{name}.aside-dead").mkdir()
    (tmp_path / ".other.aside-alive").mkdir()
    with write_aside(tmp_path / name):
        pass
    assert names_in(tmp_path) == sorted([".other.aside-alive", name])


def test_written_file_replaces_the_old_one(tmp_path: Path) -> None:
    for text in ("one", "två"):
        write_text(tmp_path / "file", text)
        assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert names_in(tmp_path) == ["file"]


def test_overlapping_writes_of_a_file_wait_for_each_other(tmp_path: Path) -> None:
    texts = ["one", "two"] * 100
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: write_text(tmp_path / "file", text), texts))
    assert (tmp_path / "file").read_text() in ("one", "two")
    assert names_in(tmp_path) == ["file"]


def test_write_uses_the_file_of_a_killed_one(tmp_path: Path) -> None:
    (tmp_path / ".file.aside").write_text("a longer text")
    write_text(tmp_path / "file", "new")
    assert (names_in(tmp_path), (tmp_path / "file").read_text()) == (["file"], "new")


def test_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "final", "new")
    assert names_in(tmp_path) == ["final"]
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "\ud800")
    assert (names_in(tmp_path), (tmp_path / "file").read_text()) == (["file", "final"], "old")


def test_removed_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "final" / "deep").mkdir(parents=True)
    remove_folder(tmp_path / "final")
    assert names_in(tmp_path) == []


def test_removing_a_missing_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_folder(tmp_path / "final")
    assert names_in(tmp_path) == []


def test_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        find_home({"TLLM_HOME": "~nosuchuser/tllm"})
    assert raised.value.what == "The path ~nosuchuser/tllm cannot be used."
    assert expand_user(Path("~/x")) == Path.home() / "x"


def test_check_of_a_folder_creates_nothing(tmp_path: Path) -> None:
    check_can_create(tmp_path / "deep" / "folder")
    assert names_in(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        check_can_create(tmp_path / "file" / "folder")


def test_folder_in_a_file_system_without_files_is_refused() -> None:
    for create in (make_folder, check_can_create):
        with pytest.raises(BadInput, match="The folder /proc/none/x cannot be created"):
            create(Path("/proc/none/x"))
    with (
        pytest.raises(BadInput, match="The folder /proc/none cannot be created"),
        write_aside(Path("/proc/none")),
    ):
        pass
