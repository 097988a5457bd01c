"""`tllm run` before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.samples.repositories import add_model
from trtllm_serve_cli.paths import find_home


@pytest.fixture
def tllm(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tllm:
    return Tllm(monkeypatch, capsys)


def test_dry_run_of_a_new_model_starts_with_its_import(tllm: Tllm) -> None:
    code, out, err = tllm("run", "demo", "Hi", "--engine", "openvino", "--seed", "1", "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "tllm import -m demo --engine openvino",
        "tllm start -m demo",
        "tllm infer -m demo --seed 1 Hi",
    ]


def test_dry_run_of_an_imported_model_starts_with_its_server(tllm: Tllm) -> None:
    add_model(find_home(), "m")
    code, out, _ = tllm("run", "-m", "m", "Hi", "--http-port", "8100", "--dry-run")
    assert (code, out) == (0, "tllm start -m m --http-port 8100\ntllm infer -m m Hi\n")


def test_unknown_model_is_refused_before_any_step(tllm: Tllm) -> None:
    code, out, err = tllm("run", "dem", "Hi")
    assert (code, out, "demo" in err) == (3, "", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "No model was specified."), (("demo", "What", "is"), "Put the prompt in quotes.")],
)
def test_wrong_usage(tllm: Tllm, words: tuple[str, ...], message: str) -> None:
    code, out, err = tllm("run", *words)
    assert (code, out, message in err) == (2, "", True)


def test_folder_that_triton_cannot_use_is_refused_before_the_import(
    tllm: Tllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TLLM_HOME", str(tmp_path / "with space"))
    code, out, err = tllm("run", "demo", "Hi")
    assert (code, out) == (3, "")
    assert f"Triton cannot use the folder {tmp_path}/with space/servers." in err
    assert not (tmp_path / "with space" / "models").exists()
