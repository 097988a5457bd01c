"""Tests of the command `tllm update`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.samples.launch_plans import fake_plan
from tests.samples.repositories import add_model
from trtllm_serve_cli.launch.server_state import PLAN_FILE, describe_supervisor, write_state
from trtllm_serve_cli.paths import Home

MODULES = ("preprocessing", "tensorrt_llm", "postprocessing", "text")


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


def install(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    sources = {f"models/{name}.py": text for name in MODULES}
    package = "trtllm_serve_cli.repository.model.runtime_copy._read_package"
    monkeypatch.setattr(package, lambda: dict(sources))


@pytest.fixture
def repository(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository that another version rendered."""
    install(monkeypatch, "old")
    path = add_model(home, "m").path
    install(monkeypatch, "new")
    return path


def read_copy(repository: Path) -> str:
    return (repository / "preprocessing/1/tllm_runtime/models/text.py").read_text()


def test_update_prints_the_replaced_folders(tllm: Tllm, repository: Path) -> None:
    folder = f"{repository}/preprocessing/1/tllm_runtime"
    code, out, err = tllm("update", "m", "--dry-run")
    assert (code, out, f"Would replace {folder}\n" in err) == (0, "", True)
    assert read_copy(repository) == "old"
    code, out, err = tllm("update")
    assert (code, out, f"Replaced {folder}\n" in err) == (0, "", True)
    assert read_copy(repository) == "new"
    assert tllm("update", "m") == (0, "", "Already up to date; nothing changed.\n")


def test_update_as_json_lists_the_folders(tllm: Tllm, repository: Path) -> None:
    code, out, err = tllm("update", "--repo", str(repository), "--json")
    updated = json.loads(out)
    assert (code, err, updated["repository"]) == (0, "", str(repository))
    assert f"{repository}/preprocessing/1/tllm_runtime" in updated["updated"]


def test_served_model_is_not_updated(tllm: Tllm, home: Home, repository: Path) -> None:
    plan = dataclasses.replace(fake_plan(home.servers), repository=repository)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, describe_supervisor("ready"))
    assert tllm("update", "m") == (
        3, "", "Error: The runtime of m was not updated.\n"
        f"  Why: the server on {plan.endpoint.http} uses the model repository\n"
        f" Next: stop the server with `tllm stop -u {plan.endpoint.http}`, then run the same "
        "command again\n",
    )  # fmt: skip
    assert read_copy(repository) == "old"
    link = home.root / "link"
    link.symlink_to(repository)
    assert tllm("update", "--repo", str(link))[0] == 3


def test_other_runtime_is_a_warning_until_it_is_updated(tllm: Tllm, repository: Path) -> None:
    _, out, _ = tllm("validate", "m")
    assert "warning: tllm.json\n    the models use the runtime of another version" in out
    tllm("update", "m")
    _, out, _ = tllm("validate", "m")
    assert "another version" not in out
