"""`tllm infer --no-server`, up to the point where an engine would be loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests.cli.running import Tllm
from tests.samples.repositories import add_model
from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.infer.no_server import check_usage, run_script
from trtllm_serve_cli.client.generate import GenerateRequest, Piece
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, MissingPart, RequestFailed
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


class FakeEngine:
    """An engine that repeats the prompt, and refuses an empty prompt."""

    def __init__(self, repository: OpenRepository) -> None:
        self.info = ModelInfo(repository.name, is_decoupled=True)
        self.closed_by: list[str] = []
        ENGINES.append(self)

    def stream(self, request: GenerateRequest, *_: object) -> Iterator[Piece]:
        if request.text_input == "refuse":
            raise RequestFailed("The request failed.")
        yield Piece(request.text_input, at_s=time.monotonic(), num_output_tokens=1)

    def close(self) -> None:
        self.closed_by.append("tllm")


ENGINES: list[FakeEngine] = []


@pytest.mark.parametrize(("prompt", "code", "shown"), [("hi", 0, "hi\n"), ("refuse", 3, "")])
def test_engine_is_closed_after_the_request(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prompt: str,
    code: int,
    shown: str,
) -> None:
    add_model(home, "m")
    monkeypatch.setattr("trtllm_serve_cli.client.local_engine.LocalEngine", FakeEngine)
    ran = Tllm(monkeypatch, capsys)("infer", "--no-server", prompt, "--raw")
    assert ran[:2] == (code, shown)
    assert ENGINES.pop().closed_by == ["tllm"]


@pytest.mark.parametrize(
    "options",
    [
        InferOptions(url="localhost:8001"),
        InferOptions(interface="http"),
        InferOptions(lora_dir=Path("adapter")),
    ],
)
def test_options_for_servers_are_usage_errors(options: InferOptions) -> None:
    with pytest.raises(typer.BadParameter, match="requires a server"):
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


def test_invalid_config_of_the_text_model_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = add_model(home, "m").path / "m" / "config.pbtxt"
    config.write_text(f"{config.read_text()}\nbackends: 1\n")
    code, _, err = Tllm(monkeypatch, capsys)("infer", "--no-server", "hi")
    assert code == 3
    assert f"{config}, line " in err and "correct this line" in " ".join(err.split())


def _break_tokenizer(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: Path) -> None:
        raise error

    for name in ("OpenVinoTokenizer", "TransformersTokenizer"):
        monkeypatch.setattr(f"trtllm_serve_cli.runtime.text.tokenizer.{name}", fail)


@pytest.mark.parametrize(
    "error", [KeyError("added_tokens"), RuntimeError("Unable to read"), ValueError("Expecting")]
)
def test_damaged_tokenizer_is_refused(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    add_model(home, "m")
    _break_tokenizer(monkeypatch, error)
    code, _, err = Tllm(monkeypatch, capsys)("infer", "--no-server", "hi")
    shown = " ".join(err.split())
    assert code == 3
    assert "The tokenizer of m cannot be loaded. " in shown and error.args[0] in shown
    assert "tllm export m > m.yaml && tllm import -f m.yaml --force" in shown


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ImportError("No module", name="openvino_genai"), "the openvino_genai package is not"),
        (ImportError("This requires sentencepiece"), "This requires sentencepiece"),
    ],
)
def test_missing_package_of_the_tokenizer_is_named(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    why: str,
) -> None:
    add_model(home, "m")
    _break_tokenizer(monkeypatch, error)
    code, _, err = Tllm(monkeypatch, capsys)("infer", "--no-server", "hi")
    assert code == 3
    assert why in " ".join(err.split())
