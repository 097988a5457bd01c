"""Tests of the command `tllm infer` with a fake Triton on real sockets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.running import Run
from tests.fakes.triton.answers import TEMPLATE, ModelError, Outputs, Request
from tests.fakes.triton.server import FakeTriton
from tests.samples.lora_adapters import write_converted
from tests.waiting import wait_until
from trtllm_serve_cli.launch.servers import running as running_servers


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/v2/models/ensemble/generate"])
@pytest.mark.parametrize("interface", [(), ("-i", "http"), ("-i", "grpc")], ids=str)
def test_port_determines_the_interface(
    triton: FakeTriton, run: Run, interface: tuple[str, ...], form: str
) -> None:
    for address in (triton.endpoint.http, triton.endpoint.grpc):
        assert run("go", *interface, "-u", form.format(address))[0] == 0


def test_option_for_grpc_is_refused_at_an_http_port(triton: FakeTriton, run: Run) -> None:
    code, _, err = run("go", "--show-tokens", "-u", triton.endpoint.http)
    assert (code, "Error: --show-tokens requires gRPC." in err) == (3, True)


@pytest.mark.parametrize("arguments", [(), ("",), ("-",), ("", "--raw")], ids=str)
def test_empty_prompt_is_refused(triton: FakeTriton, run: Run, arguments: tuple[str]) -> None:
    code, out, err = run(*arguments, "-u", triton.endpoint.grpc)
    assert (code, out, "The prompt is empty." in err) == (3, "", True)


def test_options_reach_the_server(triton: FakeTriton, run: Run) -> None:
    options = "--max-tokens 7 --temperature 0.5 --seed 0 --stop a --stop b --bad c --top-k 1"
    run("go", "-u", triton.endpoint.grpc, *options.split())
    sent = triton.received[0]
    assert (sent["max_tokens"], sent["temperature"], sent["seed"]) == (7, 0.5, 0)
    assert (sent["stop_words"], sent["bad_words"], sent["top_k"]) == (["a", "b"], ["c"], 1)


@pytest.mark.parametrize("option", ["--temperature=1.5", "--top-p=0.9", "--seed=3"])
def test_one_sampling_option_is_enough_to_sample(triton: FakeTriton, run: Run, option: str) -> None:
    for _ in range(2):
        run("go", "-u", triton.endpoint.grpc, option)
    first, second = triton.received
    assert (first["top_k"], first["top_p"] > 0) == (0, True)
    assert (first["seed"] == second["seed"]) == (option == "--seed=3")


def test_lines_of_a_batch_have_their_own_seeds(
    triton: FakeTriton, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "prompts").write_text("a\na\n")
    run("--batch", str(tmp_path / "prompts"), "--temperature=1", "-u", triton.endpoint.grpc)
    assert len({sent["seed"] for sent in triton.received}) == 2


@pytest.mark.parametrize(
    ("options", "kind", "guide"),
    [
        (("--guide", "json"), "json", None),
        (("--regex", "[a-z]+"), "regex", "[a-z]+"),
        (("--json-schema", '{"type": "object"}'), "json_schema", '{"type": "object"}'),
        (("--grammar", 'root ::= "a"'), "ebnf_grammar", 'root ::= "a"'),
    ],
)
def test_guide_reaches_the_server(
    triton: FakeTriton, run: Run, options: tuple[str, ...], kind: str, guide: str | None
) -> None:
    run("go", "-u", triton.endpoint.grpc, *options)
    sent = triton.received[0]
    assert sent["guided_decoding_guide_type"] == kind
    assert sent.get("guided_decoding_guide") == guide


def test_adapter_reaches_the_server(triton: FakeTriton, run: Run, tmp_path: Path) -> None:
    write_converted(tmp_path)
    options = ("--lora", "pirate", "--lora-task-id", "7", "--lora-dir", str(tmp_path))
    assert run("go", "-u", triton.endpoint.grpc, *options)[0] == 0
    sent = triton.received[0]
    assert [each.parameters for each in triton.requests] == [{"lora_name": "pirate"}]
    assert (sent["lora_task_id"], sent["lora_weights"][1]) == (7, [1, 2, 4])


@pytest.mark.parametrize(
    ("option", "message", "why"),
    [
        ("--beam-width=9", "beam_width is 9; it must be", "Why: --beam-width is 9; it must be"),
        ("--top-k=9", "runtime_top_k is 9", "Why: --top-k is 9"),
        ("--logprobs", "omit return_log_probs", "Why: omit --logprobs"),
        ("--regex=[a-", "guided_decoding_guide cannot be used", "Why: --regex cannot be used"),
        ("--regex=a", "guided_decoding_guide_type is set", "Why: --regex is set"),
        ("--context-logits=a.npy", "omit return_context_logits", "Why: omit --context-logits"),
        ("--generation-logits=a.npy", "return_generation_logits is", "Why: --generation-logits is"),
        ("--seed=1", "/a/seed/b, 'seed', seed.npy, --seed", "/a/seed/b, 'seed', seed.npy, --seed"),
        ("--max-tokens=2", "seed is 1", "Why: seed is 1"),
    ],
)
def test_error_names_the_option_that_set_the_tensor(
    run: Run, option: str, message: str, why: str
) -> None:
    def refuse(request: Request) -> Iterator[Outputs]:
        raise ModelError(message)

    with FakeTriton(answer=refuse) as triton:
        code, _, err = run("go", option, "-u", triton.endpoint.grpc)
    assert (code != 0, why in err) == (True, True), err


@pytest.mark.parametrize(
    ("option", "name"), [("--beam-width=2", "--beam-width"), ("--regex=a", "--regex")]
)
def test_refusal_names_the_option_that_the_layout_does_not_support(
    run: Run, option: str, name: str
) -> None:
    inputs = ("text_input", "stream", "sampling_parameters")
    with FakeTriton(input_names=inputs) as triton:
        code, _, err = run("go", option, "-u", triton.endpoint.grpc, "-m", "demo")
    assert (code, err) == (
        3,
        f"Error: demo does not support {name}.\n"
        f"  Why: the vllm layout does not have an input or sampling parameter for {name}\n"
        f" Next: omit {name}, or import the model with --layout inflight\n",
    )


def test_request_for_draft_tokens_is_not_streamed(triton: FakeTriton, run: Run) -> None:
    run("go", "-u", triton.endpoint.grpc, "--num-draft-tokens", "5", "--use-draft-logits")
    sent = {name: triton.received[0].get(name) for name in ("num_draft_tokens", "stream")}
    assert sent == {"num_draft_tokens": 5, "stream": False}
    assert triton.received[0]["use_draft_logits"] is True


@pytest.mark.parametrize("arguments", [(), ("-",)], ids=str)
def test_prompt_from_stdin(triton: FakeTriton, run: Run, arguments: tuple[str, ...]) -> None:
    run(*arguments, "-u", triton.endpoint.grpc, stdin="echo:é\nb\n".encode())
    assert triton.received[0]["text_input"] == "echo:é\nb"


def test_stdin_must_be_utf8(triton: FakeTriton, run: Run) -> None:
    code, _, err = run("-", "-u", triton.endpoint.grpc, stdin=b"\xff")
    assert code == 3
    assert "stdin is not UTF-8 text." in err


@pytest.mark.parametrize(
    ("arguments", "prompt"),
    [
        (("go",), "<user>go<assistant>"),
        (("go", "--system", "Be brief."), "<system>Be brief.<user>go<assistant>"),
        (("go", "--raw"), "go"),
    ],
)
def test_chat_template_is_applied(
    triton: FakeTriton, run: Run, arguments: tuple[str, ...], prompt: str
) -> None:
    triton.parameters = {"chat_template": TEMPLATE}
    run(*arguments, "-u", triton.endpoint.grpc)
    assert triton.received[0]["text_input"] == prompt


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("go", "--chat"), "has no chat template"),
        (("go", "--system", "x"), "has no chat template"),
        (("go", "-m", "nope"), "The server does not have a model named 'nope'."),
        (("refuse",), "Why: max_tokens must be at least 1"),
        (("break",), "Why: the engine worker died"),
        (("silent", "--timeout", "0.2"), "did not finish the request within 0.2 s"),
        (("go", "--batch", "no-such-file"), "PROMPT and --batch cannot be used together."),
        (("--batch", "no-such-file"), "no-such-file cannot be read."),
    ],
)
def test_user_errors_exit_with_3(
    triton: FakeTriton, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = run(*arguments, "-u", triton.endpoint.grpc)
    assert code == (2 if "PROMPT and" in message else 3)
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("go", "--batch", "file"),
        ("go", "--max-tokens", "0"),
        ("go", "--max-tokens", "-5"),
        ("go", "--top-p", "1.5"),
        ("go", "--seed", str(2**64)),
        ("go", "-i", "carrier-pigeon"),
        ("go", "--raw", "--system", "x"),
        ("go", "--stop-after-ms", "0"),
        ("go", "--guide", "yaml"),
        ("go", "--regex", "a", "--grammar", "root ::= 'a'"),
        ("go", "--lora-dir", "adapter"),
        ("go", "--lora-dir", "adapter", "--lora-task-id", "1", "-i", "http"),
    ],
)
def test_wrong_usage_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_missing_server_error_names_the_address(run: Run) -> None:
    code, _, err = run("go", "-i", "http", "-u", "127.0.0.1:1")
    assert code == 3
    assert "No server responds at 127.0.0.1:1." in err


def test_invalid_address_shows_a_valid_one(run: Run) -> None:
    code, _, err = run("go", "-u", "gpu-box")
    assert code == 3
    assert "127.0.0.1:8001 for gRPC" in err


def test_running_server_is_found(
    triton: FakeTriton, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SimpleNamespace(
        endpoint=triton.endpoint, models=("demo",), text_model=lambda model: "demo"
    )
    monkeypatch.setattr(running_servers, "find_running", lambda home, model: running)
    assert run("go")[:2] == (0, "Machine learning é\n")
    assert len(triton.requests) == 1


def test_several_models_require_a_name(
    triton: FakeTriton, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SimpleNamespace(
        endpoint=triton.endpoint, models=("demo", "llama"), text_model=lambda model: model
    )
    monkeypatch.setattr(running_servers, "find_running", lambda home, model: running)
    code, _, err = run("go")
    assert code == 3
    assert "the server's models are demo, llama" in err and "for example -m demo" in err


def test_batch_prints_responses_in_the_order_of_the_file(
    triton: FakeTriton, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "echo:é"}\n\n{"text_input": "echo:b", "max_tokens": 3}\n')
    code, out, err = run("--batch", str(file), "-u", triton.endpoint.grpc)
    answers = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(a["index"], a["text_output"]) for a in answers] == [(0, "é"), (1, "b")]
    assert sorted(r["max_tokens"] for r in triton.received) == [3, 200]


@pytest.mark.parametrize("interface", ["grpc", "http"])
def test_printed_request_id_is_sent(triton: FakeTriton, run: Run, interface: str) -> None:
    address = triton.endpoint.grpc if interface == "grpc" else triton.endpoint.http
    words = ("go", "-i", interface, "-u", address, "--json")
    _, out, _ = run(*words, "--request-id", "r-7")
    assert json.loads(out)["request_id"] == triton.requests[0].id == "r-7"
    _, out, _ = run(*words)
    assert json.loads(out)["request_id"] == triton.requests[1].id


def test_each_line_of_a_batch_has_its_own_id(triton: FakeTriton, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "echo:a"}\n[]\n{"prompt": "echo:b", "request_id": "mine"}\n')
    _, out, _ = run("--batch", str(file), "-u", triton.endpoint.grpc, "--request-id", "r")
    assert [json.loads(line)["request_id"] for line in out.splitlines()] == ["r-0", "", "mine"]
    assert sorted(each.id for each in triton.requests) == ["mine", "r-0"]


def test_batch_continues_after_a_failed_line_and_exits_with_3(triton: FakeTriton, run: Run) -> None:
    prompts = b"echo:a\nrefuse\necho:c\n"
    code, out, err = run("--batch", "-", "-u", triton.endpoint.grpc, stdin=prompts)
    answers = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (3, '1 of 3 lines failed. See the "error" field in the output.\n')
    assert [a.get("text_output") for a in answers] == ["a", None, "c"]
    assert "max_tokens must be at least 1" in answers[1]["error"]


def test_batch_from_closed_stdin_is_empty(triton: FakeTriton) -> None:
    command = (sys.executable, "-m", "trtllm_serve_cli.cli", "infer", "--batch", "-")
    shell = ("sh", "-c", 'exec "$0" "$@" <&-', *command, "-u", triton.endpoint.grpc)
    ran = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("interface", ["grpc", "http"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["one", "batch"])
def test_interrupt_cancels_on_the_server(
    triton: FakeTriton, tmp_path: Path, interface: str, is_batch: bool
) -> None:
    address = triton.endpoint.grpc if interface == "grpc" else triton.endpoint.http
    file = tmp_path / "prompts.txt"
    file.write_text("echo:a\nforever\n")
    prompt = ["--batch", str(file)] if is_batch else ["forever"]
    command = [sys.executable, "-m", "trtllm_serve_cli.cli.main", "infer", *prompt]
    with subprocess.Popen(
        [*command, "-i", interface, "-u", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        # Wait until the line is sent: lines that are not sent yet need no cancellation.
        wait_until(lambda: "forever" in [sent["text_input"] for sent in triton.received])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Cancelled" in err and b"Traceback" not in err
    assert triton.cancelled.wait(60)
