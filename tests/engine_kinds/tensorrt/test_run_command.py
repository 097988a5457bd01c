from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples.tensorrt_engines import engine_config, write_engine
from trtllm_serve_cli.engine_kinds.tensorrt.run_command import plan_run
from trtllm_serve_cli.errors import BadInput

_EXAMPLES = {"0.9.0": "/tensorrtllm_backend/tensorrt_llm/examples", "0.17.0": "/app/examples"}


@pytest.mark.parametrize("version", _EXAMPLES)
def test_runs_the_script_of_the_version(tmp_path: Path, version: str) -> None:
    config = engine_config(version)
    config["pretrained_config"]["mapping"]["world_size"] = 1
    engine = write_engine(tmp_path / "engine", config)
    request = {"temperature": 0.5, "seed": 7, "stop_words": (".", "!")}
    assert plan_run(engine, "/tokenizer", "What is ML?", request) == (
        "python3", f"{_EXAMPLES[version]}/run.py", "--engine_dir", str(engine),
        "--tokenizer_dir", "/tokenizer", "--no_prompt_template", "--input_text", "What is ML?",
        "--max_output_len", "200", "--temperature", "0.5", "--random_seed", "7",
        "--stop_words", ".", "!",
    )  # fmt: skip


def test_each_rank_is_a_process(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", engine_config("1.1.0"))
    command = plan_run(engine, "/tokenizer", "hello", {})
    assert command[:5] == ("mpirun", "-n", "2", "--allow-run-as-root", "python3")


def test_fields_without_a_flag_are_refused(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", engine_config("1.1.0"))
    with pytest.raises(BadInput, match="return_log_probs cannot be set"):
        plan_run(engine, "/tokenizer", "hello", {"return_log_probs": True})
