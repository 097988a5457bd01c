"""Triton and the engine use the values of `tllm set`."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Tllm


@pytest.fixture(scope="module")
def changed(
    imported: Tllm, source: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tllm]:
    """Import the demo into a new home, change its parameters, and serve it."""
    tllm = imported.with_own_home(tmp_path_factory.mktemp("changed") / "home")
    options = ("--param", "num_threads=1", "--param", "max_queue_size=9")
    tllm.done("import", "-m", "demo", "-s", source, *options)
    tllm.done(
        "set", "demo", "triton_max_batch_size=3", "max_queue_size=7", "max_beam_width=1",
        "preprocessing_instance_count=2",
    )  # fmt: skip
    started = tllm.start()
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


def config_of(tllm: Tllm, model: str) -> dict[str, Any]:
    url = f"http://{tllm.endpoint().http}/v2/models/{model}/config"
    with urllib.request.urlopen(url) as answer:
        config: dict[str, Any] = json.loads(answer.read())
    return config


def test_triton_has_the_new_values(changed: Tllm) -> None:
    engine, preprocessing = config_of(changed, "tensorrt_llm"), config_of(changed, "preprocessing")
    assert (
        engine["max_batch_size"],
        engine["dynamic_batching"]["preferred_batch_size"],
        engine["dynamic_batching"]["default_queue_policy"]["max_queue_size"],
        preprocessing["instance_group"][0]["count"],
    ) == (3, [3], 7, 2)


def test_engine_has_the_new_values(changed: Tllm) -> None:
    refused = changed("infer", "Hi", "--beam-width", "2", "--no-stream", "--max-tokens", "3")
    assert (refused.returncode, "--beam-width" in refused.stderr) == (3, True)
    changed.done("infer", "Hi", "--max-tokens", "3")


def test_changed_repository_is_valid(changed: Tllm) -> None:
    assert changed.done("validate", "demo") == ""


def test_values_are_shown_with_their_origins(changed: Tllm) -> None:
    shown = json.loads(changed.done("show", "demo", "--json"))["parameters"]
    origins = {each["name"]: each["from"] for each in shown}
    names = ("max_beam_width", "num_threads", "num_draft_tokens", "engine_dir")
    assert [origins[name] for name in names] == ["set", "import", "default", "engine"]


def test_set_recommends_a_restart(changed: Tllm) -> None:
    result = changed("set", "demo", "max_beam_width=2")
    assert result.stderr == ("A running server uses the old values. Next: tllm restart -m demo\n")
