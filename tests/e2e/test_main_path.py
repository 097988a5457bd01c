"""The first commands of a new user, in order."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import Tllm
from tests.ports import free_ports


def test_reimport_reuses_checkpoint_and_engine(imported_demo: Tllm) -> None:
    result = imported_demo("import", "-m", "demo")
    assert result.returncode == 0
    assert "Using the existing engine" in result.stderr


def test_list_names_the_model(imported_demo: Tllm) -> None:
    (model,) = json.loads(imported_demo.done("list", "--json"))
    assert (model["name"], model["engine"]) == ("demo", "openvino")


def test_infer_streams_a_response_and_reports_its_speed(served_demo: Tllm) -> None:
    result = served_demo("infer", "What is ML?", "--max-tokens", "30")
    assert result.returncode == 0
    assert "machine learning" in result.stdout.lower()
    assert "30 tokens" in result.stderr and "tokens/s" in result.stderr


def test_run_imports_starts_and_answers(
    imported_demo: Tllm, served_demo: Tllm, tmp_path: Path
) -> None:
    """Start from the checkpoint and the engine only, in a home without models and servers."""
    question = ("What is ML?", "--max-tokens", "10")
    new = imported_demo.with_own_home(tmp_path / "home")
    try:
        answered = new("run", "demo", *question, "--http-port", str(free_ports(3)[0]))
        assert answered.returncode == 0, answered.stderr
        assert answered.stdout == served_demo.done("infer", *question)
        assert "To stop the server, run `tllm stop demo`." in answered.stderr
        again = new("run", "demo")
        assert (again.returncode, again.stdout) == (0, "")
        assert "/v1" in again.stderr and "tllm infer" in again.stderr
    finally:
        new("stop", "--all")


def test_infer_over_http_returns_the_same_text(served_demo: Tllm) -> None:
    words = ("infer", "What is ML?", "--max-tokens", "30")
    assert served_demo.done(*words, "-i", "http") == served_demo.done(*words)


def test_infer_without_chat_template_continues_the_prompt(served_demo: Tllm) -> None:
    raw = served_demo.done("infer", "The capital of France is", "--raw", "--max-tokens", "5")
    assert "Paris" in raw


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_infer_accepts_the_names_of_triton_models(served_demo: Tllm, model: str) -> None:
    words = ("infer", "The capital of France is", "--raw", "--max-tokens", "5")
    assert served_demo.done(*words, "-m", model) == served_demo.done(*words)


def test_rows_of_one_request_have_the_responses_of_separate_requests(
    served_demo: Tllm, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("The capital of France is\nOne, two, three,\n")
    words = ("infer", "--raw", "--batch", str(file), "--max-tokens", "5")
    one, several = (
        [json.loads(line) for line in served_demo.done(*words, *more).splitlines()]
        for more in (("--batch-inputs",), ())
    )
    counted = ("index", "text_output", "num_input_tokens", "num_output_tokens")
    assert [[each[name] for name in counted] for each in one] == [
        [each[name] for name in counted] for each in several
    ]


def test_infer_json_includes_token_counts(served_demo: Tllm) -> None:
    answer = json.loads(served_demo.done("infer", "What is ML?", "--max-tokens", "7", "--json"))
    assert answer["num_output_tokens"] == 7


def test_chat_completion_follows_a_json_schema(served_demo: Tllm) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    base_url = f"{served_demo.status()['openai']}/v1"
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Name a city in France as JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
            max_tokens=60,
            temperature=0,
        )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"city"}


def test_infer_refuses_a_prompt_longer_than_the_context(served_demo: Tllm) -> None:
    result = served_demo("infer", "-", "--max-tokens", "5", input="word " * 9000)
    assert result.returncode == 3
    assert "max_seq_len" in result.stderr and "Traceback" not in result.stderr


def test_bench_reports_every_request(served_demo: Tllm) -> None:
    words = ("bench", "token-norm-dist", "--num-requests", "8", "--json")
    result = json.loads(served_demo.done(*words))
    assert result["summary"]["num_completed"] == 8


def test_metrics_show_the_engine_worker(served_demo: Tllm) -> None:
    assert "engine worker" in served_demo.done("metrics")


def test_status_shows_the_server_and_its_memory(served_demo: Tllm) -> None:
    status = served_demo.status()
    assert (status["state"], status["models"]) == ("ready", ["demo"])
    assert {"engine worker", "tritonserver", "supervisor"} <= set(status["memory_bytes"])


def test_logs_are_those_of_triton(served_demo: Tllm) -> None:
    assert "successfully loaded" in served_demo.done("logs", "-n", "200")


def test_remove_refuses_a_model_that_is_served(served_demo: Tllm) -> None:
    result = served_demo("remove", "demo", "--yes")
    assert result.returncode == 3
    assert "tllm stop" in result.stderr


def test_starting_on_the_port_of_a_server_names_the_server(served_demo: Tllm) -> None:
    port = served_demo.status()["http"].rpartition(":")[2]
    result = served_demo("start", "--http-port", port)
    assert result.returncode == 3
    assert f"A server with HTTP port {port} already exists." in result.stderr
    assert "the server for demo is ready" in result.stderr


def test_doctor_finds_no_problem(imported_demo: Tllm) -> None:
    assert "PROBLEM" not in imported_demo.done("doctor")
