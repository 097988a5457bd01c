"""Conversations with a fake Triton on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.terminal import Terminal, run_at_terminal
from tests.fakes.triton.answers import TEMPLATE
from tests.fakes.triton.server import FakeTriton
from tests.waiting import wait_until

CTRL_C, CTRL_D = "\x03", "\x04"
both = pytest.mark.parametrize("interface", ["grpc", "http"])


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        fake.parameters = {"chat_template": TEMPLATE, "max_seq_len": "1000"}
        yield fake


def open_conversation(triton: FakeTriton, interface: str = "grpc") -> tuple[str, ...]:
    address = triton.endpoint.grpc if interface == "grpc" else triton.endpoint.http
    return ("infer", "-u", address, "-i", interface, "-m", "demo")


def send_line(terminal: Terminal, line: str) -> None:
    terminal.expect("> ")
    terminal.type(f"{line}\n")
    terminal.expect(f"{line}\r\n")


@both
def test_prompt_contains_the_previous_turns(triton: FakeTriton, interface: str) -> None:
    with run_at_terminal(*open_conversation(triton, interface)) as terminal:
        send_line(terminal, "hello")
        terminal.expect("Machine learning é\r\n3 tokens · first after")
        send_line(terminal, "more")
        terminal.expect("Machine learning é\r\n")
        terminal.expect("> ")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert [sent["text_input"] for sent in triton.received] == [
        "<user>hello<assistant>",
        "<user>hello<assistant>Machine learning é<user>more<assistant>",
    ]


@both
@pytest.mark.parametrize("prompt", ["forever", "silent"])
def test_ctrl_c_cancels_the_response_and_shows_the_prompt(
    triton: FakeTriton, interface: str, prompt: str
) -> None:
    triton.parameters["chat_template"] = "{{ messages[-1].content }}"
    with run_at_terminal(*open_conversation(triton, interface)) as terminal:
        send_line(terminal, prompt)
        if prompt == "forever":
            terminal.expect("on ")
        else:
            wait_until(lambda: triton.requests)
        terminal.type(CTRL_C)
        terminal.expect("Cancelled after ")
        assert prompt == "silent" or triton.cancelled.wait(60)
        send_line(terminal, "/quit")
        assert terminal.wait() == 0


def test_ctrl_c_at_the_prompt_shows_another(triton: FakeTriton) -> None:
    with run_at_terminal(*open_conversation(triton)) as terminal:
        terminal.expect("> ")
        terminal.type("half a line")
        terminal.expect("half a line")
        terminal.press(CTRL_C, until="\r\n")
        send_line(terminal, "/bye")
        assert terminal.wait() == 0
    assert triton.requests == []


def test_commands(triton: FakeTriton) -> None:
    with run_at_terminal(*open_conversation(triton), "--system", "Be brief.") as terminal:
        send_line(terminal, "one")
        send_line(terminal, "/reset")
        terminal.expect("Conversation cleared.")
        send_line(terminal, "two")
        send_line(terminal, "/system Be long.")
        terminal.expect("System prompt set.")
        send_line(terminal, "/clear")
        send_line(terminal, "three")
        send_line(terminal, "/nonsense")
        terminal.expect("Unknown command /nonsense. Commands:")
        terminal.expect("Exit. Ctrl-D also exits.")
        send_line(terminal, "")
        send_line(terminal, " /four")
        send_line(terminal, "/quit")
        assert terminal.wait() == 0
    assert [sent["text_input"].partition("<assistant>")[0] for sent in triton.received] == [
        "<system>Be brief.<user>one",
        "<system>Be brief.<user>two",
        "<system>Be long.<user>three",
        "<system>Be long.<user>three",
    ]


def test_failed_request_does_not_change_the_conversation(triton: FakeTriton) -> None:
    triton.parameters["chat_template"] = "{{ messages[-1].content }}"
    with run_at_terminal(*open_conversation(triton)) as terminal:
        send_line(terminal, "refuse")
        terminal.expect("Why: max_tokens must be at least 1")
        send_line(terminal, "hello")
        terminal.expect("Machine learning é")
        send_line(terminal, "/quit")
        assert terminal.wait() == 0


def test_full_context_drops_the_oldest_turn(triton: FakeTriton) -> None:
    triton.parameters["max_seq_len"] = "14"  # the fake counts 4 tokens in every prompt
    with run_at_terminal(*open_conversation(triton), "--max-tokens", "5") as terminal:
        send_line(terminal, "one")
        send_line(terminal, "two")
        terminal.expect("The context is full: the oldest turn was dropped.\r\n")
        send_line(terminal, "/quit")
        assert terminal.wait() == 0
    assert triton.received[1]["text_input"] == "<user>two<assistant>"


def test_conversation_requires_a_chat_template(triton: FakeTriton) -> None:
    triton.parameters = {}
    with run_at_terminal(*open_conversation(triton)) as terminal:
        terminal.expect("demo has no chat template.")
        assert terminal.wait() == 3


@pytest.mark.parametrize("option", ["--raw", "--json", "--num-return-sequences=2"])
def test_options_without_a_conversation_are_wrong_usage(triton: FakeTriton, option: str) -> None:
    with run_at_terminal(*open_conversation(triton), option) as terminal:
        terminal.expect("starts a conversation")
        assert terminal.wait() == 2
