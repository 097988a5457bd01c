"""Engine kinds that serve checkpoints, on a real Triton, with stand-ins of their packages."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import UNUSED, Tllm
from tests.fakes.stand_in_engines import STAND_IN
from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.dispatch import describe_checkpoint
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.sources.checkpoint import Checkpoint

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("transformers"),
    reason="needs the extra `convert`: see the Makefile",
)


@pytest.fixture(
    scope="module",
    params=[("pytorch", "inflight"), ("pytorch", "llmapi"), ("vllm", "inflight")],
    ids="-".join,
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, letters: Path
) -> Iterator[Tllm]:
    """Serve a model that counts through the letters."""
    kind, layout = request.param
    home = tmp_path_factory.mktemp(f"{kind}-{layout}") / "home"
    home.mkdir()
    python = home / "python-of-the-engine"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{STAND_IN}" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    checkpoint = Checkpoint(letters, "hf", f"local:{letters}", None, "LlamaForCausalLM", 1)
    request = BuildRequest("letters", checkpoint, letters, kind, EngineOptions(tp=2))
    engine = describe_checkpoint(request, Toolchain(sys.executable, trtllm_version="1.2.0"))
    serving = ServingOptions(layout=layout, parameters={"engine_python": str(python)})
    repository = plan_repository("letters", engine, serving)
    write_repository(repository, home / "models" / "letters")
    if layout == "inflight":
        for model in UNUSED:
            shutil.rmtree(home / "models" / "letters" / model)
    tllm = Tllm(home)
    try:
        started = tllm.start()
        assert started.returncode == 0, started.stdout + started.stderr
        yield tllm
    finally:
        tllm("stop", "--all")


def test_response_has_the_tokens_of_the_stand_in(served: Tllm) -> None:
    answer = json.loads(served.done("infer", "A", "--raw", "--max-tokens", "5", "--json"))
    # Upstream's llmapi layout has no output for the count.
    assert answer["text_output"] == "BCDEF"
    assert answer["num_output_tokens"] in (5, None)


def test_streamed_and_whole_text_are_equal(served: Tllm) -> None:
    words = ("infer", "A", "--raw", "--max-tokens", "20")
    assert served.done(*words) == served.done(*words, "--no-stream") == "BCDEFGHIJKLMNOPQRSTU\n"


def test_a_stop_word_of_several_tokens_ends_the_text(served: Tllm) -> None:
    text = served.done("infer", "A", "--raw", "--max-tokens", "20", "--stop", "EF")
    assert text in ("BCDEF\n", "BCD\n")


def test_unsupported_option_is_reported(served: Tllm) -> None:
    result = served("infer", "A", "--raw", "--beam-width", "2")
    assert result.returncode == 3
    assert "beam_width" in result.stderr.replace("--beam-width", "beam_width")
