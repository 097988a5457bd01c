"""`tllm infer --no-server`, up to the point where an engine would be loaded."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.samples.repositories import add_model
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.infer.no_server import check_usage, run_script
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, MissingPart
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.model_repository import OpenRepository, open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository


@pytest.fixture
def tensorrt(tmp_path: Path) -> OpenRepository:
    options = ServingOptions(parameters={"tokenizer_dir": str(tmp_path / "tokenizer")})
    plan = plan_repository("mine", tensorrt_engine(tmp_path), options)
    write_repository(plan, tmp_path / "mine")
    return open_repository(tmp_path / "mine")


@pytest.mark.parametrize(
    "options",
    [
        InferOptions(url="localhost:8001"),
        InferOptions(interface="http"),
        InferOptions(lora_dir=Path("adapter")),
    ],
)
def test_options_for_servers_are_usage_errors(options: InferOptions) -> None:
    with pytest.raises(click.BadParameter, match="requires a server"):
        check_usage(options)


def test_script_is_named_if_it_is_missing(
    tensorrt: OpenRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MissingPart, match=r"run\.py|python3"):
        run_script(tensorrt, "hello", InferOptions(), {"max_tokens": 8})
    assert "--max_output_len 8" in capsys.readouterr().err


def test_script_samples_at_a_temperature(
    tensorrt: OpenRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MissingPart):
        run_script(tensorrt, "hello", InferOptions(), {"temperature": 1.5})
    assert "--temperature 1.5 --top_k 0 --top_p 1.0 --random_seed" in capsys.readouterr().err


def test_script_requires_a_prompt(tensorrt: OpenRepository) -> None:
    with pytest.raises(BadInput, match="requires a single prompt"):
        run_script(tensorrt, None, InferOptions(), {})


def test_layouts_without_a_worker_are_refused(tensorrt: OpenRepository) -> None:
    from trtllm_serve_cli.client.local_engine import LocalEngine

    with pytest.raises(BadInput, match="cannot run without a server"):
        LocalEngine(tensorrt)


def test_reads_the_settings_of_the_text_model(home: Home) -> None:
    from trtllm_serve_cli.client.local_engine import read_info

    repository = open_repository(add_model(home, "mine").path)
    info = read_info(repository)
    assert (info.name, info.is_decoupled, info.engine_kind) == ("mine", True, repository.kind)
