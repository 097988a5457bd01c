"""Printed responses of `tllm infer`, with a fake Triton on real sockets."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.running import Run
from tests.fakes.triton.answers import PERF, Outputs, Request, follow_prompt
from tests.fakes.triton.server import FakeTriton
from tests.waiting import wait_until
from trtllm_serve_cli.cli.infer import render_answer
from trtllm_serve_cli.cli.infer.render_answer import (
    CollectedStream,
    describe_cancel,
    describe_log_probs,
    show_figures,
)
from trtllm_serve_cli.cli.shared.target import Target
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import Completion, GenerateRequest, Interface, Piece

FIGURES = re.compile(r"3 tokens · first after \d+ ms · [\d.]+ tokens/s · id [0-9a-f]{16}\n")


@pytest.mark.parametrize("interface", ["grpc", "http"])
def test_response_goes_to_stdout_and_times_to_stderr(
    triton: FakeTriton, run: Run, interface: str
) -> None:
    address = triton.endpoint.grpc if interface == "grpc" else triton.endpoint.http
    code, out, err = run("go", "-i", interface, "-u", address)
    assert (code, out) == (0, "Machine learning é\n")
    assert FIGURES.fullmatch(err)


@pytest.mark.parametrize(("limit", "is_reached"), [(3, True), (4, False)])
def test_figures_report_that_max_tokens_was_reached(
    triton: FakeTriton, run: Run, limit: int, is_reached: bool
) -> None:
    err = run("go", "-u", triton.endpoint.grpc, "--max-tokens", str(limit))[2]
    assert (f" tokens/s · stopped at --max-tokens {limit} · id " in err) == is_reached


@pytest.mark.parametrize(
    ("output_ids", "is_reached"), [((), False), (((1, 2), (3,)), True), (((1,), (3,)), False)]
)
def test_each_sequence_has_its_own_max_tokens(
    output_ids: tuple[tuple[int, ...], ...],
    is_reached: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    completion = Completion(("a", "b"), 1.0, num_output_tokens=2, output_ids=output_ids)
    request = GenerateRequest("go", max_tokens=2)
    show_figures(CollectedStream((), completion, False), request, was_streamed=False)
    assert ("stopped at --max-tokens 2" in capsys.readouterr().err) == is_reached


def test_log_probabilities_are_printed_with_their_tokens(triton: FakeTriton, run: Run) -> None:
    _, out, err = run("go", "-u", triton.endpoint.grpc, "--logprobs")
    assert out == "Machine learning é\n"
    assert err.splitlines()[:2] == [
        "log probability -0.500 · perplexity 1.18",
        "  'Machine' -0.500 ' ' -0.500 'learning é' -0.500",
    ]


def test_log_probabilities_of_several_sequences_are_numbered(triton: FakeTriton, run: Run) -> None:
    _, _, err = run("beams", "-u", triton.endpoint.grpc, "--logprobs", "--beam-width", "2")
    assert err.splitlines()[:4] == [
        "log probability [0] -1.000 · perplexity 1.65",
        "  -0.250 -0.750",
        "log probability [1] -2.000 · perplexity 2.72",
        "  -1.500 -0.500",
    ]


def test_lines_of_log_probabilities_break_between_tokens() -> None:
    pieces = [Piece(" a-long-word and", 0.0, output_log_probs=(-0.5, -0.25)), Piece("b", 0.0)]
    pieces += [Piece(" c", 0.0, output_log_probs=(-1.0,))]
    completion = Completion(("",), 1.0, cum_log_probs=(-1.75,))
    assert describe_log_probs(CollectedStream(pieces, completion, False), 20) == [
        "log probability -1.750",
        "  ' a-long-word and' -0.500 -0.250",
        "  ' c' -1.000",
    ]


def test_perf_metrics_are_a_line(triton: FakeTriton, run: Run) -> None:
    _, _, err = run("go", "-u", triton.endpoint.grpc, "--perf")
    assert err.splitlines()[0] == (
        "queued 1.2 ms · prefill 30.0 ms · decode 200.0 ms · 5 KV blocks, 3 new, 2 reused"
    )


def test_perf_metrics_are_in_the_json(triton: FakeTriton, run: Run) -> None:
    _, out, _ = run("go", "-u", triton.endpoint.grpc, "--perf", "--json")
    assert json.loads(out)["perf_metrics"] == PERF


@pytest.mark.parametrize("options", [(), ("--no-stream",)], ids=["streamed", "not streamed"])
def test_response_stopped_early_is_printed(
    triton: FakeTriton, run: Run, options: tuple[str, ...]
) -> None:
    code, out, err = run("forever", "-u", triton.endpoint.grpc, "--stop-after-ms", "200", *options)
    assert (code, out[:3], triton.received[0]["stream"]) == (0, "on ", True)
    assert "stopped after 2" in err
    assert triton.cancelled.wait(60)


def test_json_is_alone_on_stdout(triton: FakeTriton, run: Run) -> None:
    code, out, err = run("go", "-u", triton.endpoint.grpc, "--json", "--logprobs", "-m", "demo")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["text_output"], answer["finish_reason"]) == ("Machine learning é", None)
    assert (answer["model"], answer["num_output_tokens"]) == ("demo", 3)
    assert answer["output_log_probs"] == [[-0.5, -0.5, -0.5]]


def test_unstreamed_response_over_http_uses_a_stream(triton: FakeTriton, run: Run) -> None:
    code, out, err = run("go", "-u", triton.endpoint.http, "-i", "http", "--no-stream")
    assert (code, out, triton.received[0]["stream"]) == (0, "Machine learning é\n", True)
    assert err.startswith("3 tokens · after ")


@pytest.mark.parametrize(
    ("interface", "is_streamed", "message"),
    [
        ("grpc", True, "Cancelled now."),
        ("grpc", False, "Cancelled now."),
        ("http", True, "Cancelled now."),
        ("http", False, "Disconnected now. The server still completes the request"),
    ],
)
def test_description_of_a_cancellation(
    interface: Interface, is_streamed: bool, message: str
) -> None:
    target = Target(Endpoint(), "demo", interface, None)
    request = GenerateRequest("go", stream=is_streamed)
    assert describe_cancel(target, request, "now").startswith(message)


def test_several_sequences_are_numbered(triton: FakeTriton, run: Run) -> None:
    code, out, _ = run("beams", "-u", triton.endpoint.grpc, "--beam-width", "2")
    assert (code, out) == (0, "[0] one\n[1] two\n")
    assert triton.received[0]["stream"] is False


def test_text_before_a_failure_is_printed(triton: FakeTriton, run: Run) -> None:
    assert run("break", "-u", triton.endpoint.grpc)[1] == "on \n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_slow_response_is_announced_on_a_terminal(
    triton: FakeTriton, run: Run, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(render_answer, "NOTICE_S", 0.01)
    notice = "No response after 0.01 s. Press Ctrl-C to cancel the request.\n"

    def answer(request: Request) -> Iterator[Outputs]:
        if is_terminal:
            wait_until(lambda: notice in screen.getvalue())
        return follow_prompt(request)

    triton.answer = answer
    code, out, _ = run("go", "-u", triton.endpoint.grpc)
    assert (code, out) == (0, "Machine learning é\n")
    assert (notice in screen.getvalue()) == is_terminal


def test_control_characters_are_escaped_on_a_terminal(triton: FakeTriton) -> None:
    main_end, terminal = pty.openpty()
    command = [sys.executable, "-m", "trtllm_serve_cli.cli.main", "infer", "controls"]
    done = subprocess.run(
        [*command, "-u", triton.endpoint.grpc], stdout=terminal, stderr=subprocess.PIPE, check=True
    )
    shown = b""
    while not shown.endswith(b"\n\r\n"):  # a terminal may return the lines one by one
        shown += os.read(main_end, 4096)
    os.close(terminal)
    os.close(main_end)
    assert shown == b"a\\x1b[2Jb\\x0d\\x9b\tc\r\n\r\n"
    assert b"1 token \xc2\xb7" in done.stderr
