"""The stub receives only requested tensors, and releases responses first."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import weakref

from tests.fakes.triton_utils import Tensor
from trtllm_serve_cli.runtime.triton.stub_workarounds import StreamKeeper, pick_requested


class Responses:
    """A stand-in for the responses of a business-logic request."""


def test_picks_only_requested_tensors() -> None:
    tensors = [Tensor(name, None) for name in ("text_output", "batch_index", "sequence_index")]
    picked = pick_requested(["sequence_index", "text_output"], tensors)
    assert [tensor.name() for tensor in picked] == ["text_output", "sequence_index"]


def test_keeps_responses_until_their_time_has_passed() -> None:
    now_s = [0.0]
    keeper = StreamKeeper(kept_s=5.0, clock=lambda: now_s[0])
    first, second = Responses(), Responses()
    held = [weakref.ref(first), weakref.ref(second)]
    lives = []
    keeper.keep(first)
    now_s[0] = 4.0
    keeper.keep(second)
    del first, second
    for now_s[0] in (4.9, 5.0, 9.0):
        keeper.keep(None)
        lives.append([each() is not None for each in held])
    assert lives == [[True, True], [False, True], [False, False]]


def test_kills_the_process_after_another_process_has_ended() -> None:
    script = textwrap.dedent("""
        import subprocess, sys, time
        from trtllm_serve_cli.runtime.triton.stub_workarounds import kill_after
        server = subprocess.Popen(["cat"], stdin=sys.stdin)
        kill_after(server.pid, 0)
        print("watching", flush=True)
        time.sleep(600)
    """)
    command = (sys.executable, "-c", script)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"watching\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL
