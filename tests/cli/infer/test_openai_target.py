"""`tllm infer -i openai` with a fake server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.cli.terminal import Terminal, run_at_terminal
from tests.fakes.openai_server import FakeOpenAI

TEXT = "Machine learning é"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_response_goes_to_stdout(server: FakeOpenAI, tllm: Tllm, stream: str) -> None:
    code, out, err = tllm("infer", "-i", "openai", "-u", server.url, "go", stream)
    assert (code, out) == (0, f"{TEXT}\n")
    assert err.startswith("3 tokens · ")
    assert server.bodies[0]["stream"] is (stream == "--stream")


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_finish_reasons_are_in_the_json(server: FakeOpenAI, tllm: Tllm, stream: str) -> None:
    request = ("infer", "-i", "openai", "-u", server.url, "go", "--json", stream)
    assert json.loads(tllm(*request)[1])["finish_reason"] == "stop"
    answer = json.loads(tllm(*request, "--num-return-sequences", "2")[1])
    assert (answer["finish_reason"], answer["finish_reasons"]) == ("stop", ["stop", "stop"])


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ((), "/v1/chat/completions"),
        (("--chat",), "/v1/chat/completions"),
        (("--raw",), "/v1/completions"),
        (("--api", "completions"), "/v1/completions"),
    ],
    ids=str,
)
def test_options_select_the_api(
    server: FakeOpenAI, tllm: Tllm, options: tuple[str, ...], path: str
) -> None:
    assert tllm("infer", "-i", "openai", "-u", server.url, "go", *options)[0] == 0
    assert server.paths == [path]


def test_system_prompt_is_a_message(server: FakeOpenAI, tllm: Tllm) -> None:
    tllm("infer", "-i", "openai", "-u", server.url, "go", "--system", "Be brief.")
    assert server.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
    ]


def test_url_and_key_are_read_from_the_environment(
    server: FakeOpenAI, tllm: Tllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_key = "secret"
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    code, _, err = tllm("infer", "-i", "openai", "go")
    assert (code, "requires a valid API key" in err, "OPENAI_API_KEY" in err) == (3, True, True)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert tllm("infer", "-i", "openai", "go")[:2] == (0, f"{TEXT}\n")
    code, _, err = tllm("infer", "-i", "openai", "go", "--api-key", "wrong")
    assert (code, "wrong" in err) == (3, False)


def test_url_is_required(server: FakeOpenAI, tllm: Tllm) -> None:
    code, _, err = tllm("infer", "-i", "openai", "go")
    assert (code, "requires a server URL" in err) == (3, True)


@pytest.mark.parametrize(
    "options",
    [
        ("-i", "openai", "--api", "chat", "--raw"),
        ("-i", "openai", "--api", "completions", "--chat"),
        ("-i", "openai", "--api", "completions", "--system", "x"),
        ("-i", "openai", "--show-tokens"),
        ("-i", "openai", "--context-logits", "x"),
        ("-i", "openai", "--no-server"),
        ("--api", "chat"),
        ("--api-key", "x"),
        ("-i", "http", "--api-key", "x"),
    ],
    ids=" ".join,
)
def test_contradictions_are_wrong_usage(
    server: FakeOpenAI, tllm: Tllm, options: tuple[str, ...]
) -> None:
    code, _, err = tllm("infer", "go", "-u", server.url, *options)
    assert (code, "Invalid value" in err) == (2, True)
    assert server.bodies == []


def test_schema_is_the_response_format(server: FakeOpenAI, tllm: Tllm) -> None:
    schema = '{"type": "object"}'
    tllm("infer", "-i", "openai", "-u", server.url, "go", "--json-schema", schema)
    sent = server.bodies[0]["response_format"]
    assert (sent["type"], sent["json_schema"]["schema"]) == ("json_schema", {"type": "object"})


def test_batch_has_a_line_per_prompt(server: FakeOpenAI, tllm: Tllm, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "go", "top_k": 3}\n{"prompt": "go", "beam_width": 2}\n')
    code, out, _ = tllm(
        "infer", "-i", "openai", "-u", server.url, "--batch", str(file), "--system", "hi"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, lines[0]["text_output"]) == (3, TEXT)
    assert "does not support --beam-width" in lines[1]["error"]
    assert (server.bodies[0]["top_k"], len(server.bodies[0]["messages"])) == (3, 2)


def _send_line(terminal: Terminal, line: str) -> None:
    terminal.expect("> ")
    terminal.type(f"{line}\n")
    terminal.expect(f"{line}\r\n")


def test_conversation_sends_messages(server: FakeOpenAI) -> None:
    command = ("infer", "-i", "openai", "-u", server.url, "--system", "Be brief.")
    with run_at_terminal(*command) as terminal:
        _send_line(terminal, "hello")
        terminal.expect(TEXT)
        _send_line(terminal, "more")
        terminal.expect(TEXT)
        _send_line(terminal, "forever")
        terminal.expect("on3 ")
        terminal.type("\x03")
        terminal.expect("Disconnected after ")
        assert server.cancelled.wait(60)
        _send_line(terminal, "/quit")
        assert terminal.wait() == 0
    roles = [[each["role"] for each in body["messages"]] for body in server.bodies]
    assert roles[:2] == [["system", "user"], ["system", "user", "assistant", "user"]]
    assert server.bodies[1]["messages"][2]["content"] == TEXT


def test_full_context_drops_the_oldest_turn(server: FakeOpenAI) -> None:
    server.models[0]["max_model_len"] = 14  # the fake counts 4 tokens in every prompt
    with run_at_terminal(
        "infer", "-i", "openai", "-u", server.url, "--max-tokens", "5"
    ) as terminal:
        _send_line(terminal, "one")
        _send_line(terminal, "two")
        terminal.expect("The context is full: the oldest turn was dropped.\r\n")
        _send_line(terminal, "/quit")
        assert terminal.wait() == 0
    assert len(server.bodies[1]["messages"]) == 1
