"""Thousands of concurrent wrong requests are rejected with the reason and affect no other."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import string
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.e2e.alive import answers
from tests.e2e.conftest import Tllm
from tests.e2e.core import gauge
from tests.e2e.hostile import (
    CORE,
    TEXT_MODELS,
    RawTensor,
    WrongRequest,
    numbers,
    plain_tensors,
    plan_wrong_requests,
    texts,
)
from tests.e2e.sending import Reply, as_message, post, send, send_and_leave
from tests.waiting import wait_until
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.transport.over_grpc import connect
from trtllm_serve_cli.metrics.fetch import fetch_metrics
from trtllm_serve_cli.metrics.parse import parse_metrics

# By default, each kind of wrong request is sent at least once. With --full, twice.
NUM_WRONG, NUM_WRONG_FULL, NUM_CONCURRENT = 1600, 3200, 32
# The maximum length of a text for the demo model's context of 8192 tokens.
MAX_LETTERS = 8192 * 128
# The seed determines the order. Runs with the same seed differ only in timing.
SEED = int(os.environ.get("TLLM_TEST_SEED", "1"))


@pytest.fixture(scope="module")
def stub(endpoint: Endpoint) -> Iterator[Any]:
    with connect(endpoint.grpc) as connected:
        yield connected


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(NUM_CONCURRENT) as pool:
        yield pool


@dataclass(frozen=True, slots=True)
class Processes:
    """The server's processes and the number of their threads and open files."""

    pids: tuple[int, ...]
    num_threads: int
    num_files: int


def inspect_processes(tllm: Tllm) -> Processes:
    supervisor = psutil.Process(tllm.state().supervisor_pid)
    num_threads, num_files = {}, {}
    for each in (supervisor, *supervisor.children(recursive=True)):
        # The process that checks guides is started on demand.
        with contextlib.suppress(psutil.Error):
            if not any(word.endswith("grammar_check") for word in each.cmdline()):
                num_files[each.pid], num_threads[each.pid] = each.num_fds(), each.num_threads()
    return Processes(tuple(sorted(num_threads)), sum(num_threads.values()), sum(num_files.values()))


def plain(model: str, **changed: RawTensor) -> Any:
    """Return a valid message."""
    return as_message(WrongRequest(model, {**plain_tensors(model), **changed}, "", ()))


def plain_messages() -> list[Any]:
    """Return the valid messages to send between wrong ones; two have the same id."""
    yes = numbers("BOOL", [[True]])
    messages = [
        plain(CORE),
        plain(CORE, streaming=yes),
        plain(CORE, end_id=numbers("INT32", [[50256]]), min_tokens=numbers("INT32", [[2]])),
        *(plain(model) for model in (*TEXT_MODELS, "preprocessing", "postprocessing")),
        plain("ensemble", stream=yes),
        plain("ensemble", bad_words=texts([[b"ten"]])),
    ]
    for message in messages[:2]:
        message.id = "the same"
    return messages


@pytest.mark.timeout(900)
def test_wrong_requests_are_rejected_with_the_reason_and_do_not_affect_others(
    served: Tllm, endpoint: Endpoint, stub: Any, threads: ThreadPoolExecutor, is_full: bool
) -> None:
    num_wrong = NUM_WRONG_FULL if is_full else NUM_WRONG
    messages = plain_messages()
    alone = [send(stub, message) for message in messages]
    assert [reply.error for reply in alone] == [""] * len(messages)
    long = plain(CORE, request_output_len=numbers("INT32", [[4000]]))
    wrong = plan_wrong_requests(num_wrong, SEED)

    def send_one(number: int) -> tuple[Reply, Reply | None]:
        if number % 50 == 0:
            send_and_leave(stub, long, random.Random(number))
        each = wrong[number]
        reply = post(endpoint.http, each) if number % 3 == 0 else None
        plain_reply = (
            send(stub, messages[number // 10 % len(messages)]) if number % 10 == 0 else None
        )
        return reply or send(stub, as_message(each)), plain_reply

    # The first tenth starts all permanent threads.
    list(threads.map(send_one, range(num_wrong // 10)))
    wait_until(lambda: is_idle(endpoint))
    before = inspect_processes(served)
    answers = list(threads.map(send_one, range(num_wrong)))

    unexplained = sorted(
        f"{each}: {reply.error or 'was served'}"
        for each, (reply, _) in zip(wrong, answers, strict=True)
        if not any(name in reply.error for name in each.names)
    )
    assert not unexplained, "\n".join([f"{len(unexplained)} of {num_wrong}:", *unexplained])
    expected = [alone[number // 10 % len(messages)] for number in range(0, num_wrong, 10)]
    assert [plain_reply for _, plain_reply in answers if plain_reply] == expected
    wait_until(lambda: is_idle(endpoint))
    assert [send(stub, message) for message in messages] == alone
    # Between fork and exec, the process that checks guides looks like the engine worker.
    wait_until(lambda: inspect_processes(served).pids == before.pids)
    after = inspect_processes(served)
    assert after.num_threads <= before.num_threads + NUM_CONCURRENT
    assert after.num_files <= before.num_files + NUM_CONCURRENT


def test_default_requests_include_each_kind() -> None:
    default, full = (plan_wrong_requests(number, SEED) for number in (NUM_WRONG, NUM_WRONG_FULL))
    assert {str(each) for each in default} == {str(each) for each in full}


def is_idle(endpoint: Endpoint) -> bool:
    """Return whether no request is active or waiting and no KV cache block is in use."""
    page = parse_metrics(fetch_metrics(endpoint.metrics), 0.0)
    used = page.value("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")
    return [gauge(endpoint, kind) for kind in ("active", "waiting")] + [used] == [0, 0, 0]


def test_encoding_a_long_text_does_not_block_others(stub: Any, threads: ThreadPoolExecutor) -> None:
    """A text of random letters takes longest: it consists of a single word."""
    letters = random.Random(SEED).choices(string.ascii_lowercase, k=MAX_LETTERS)
    long = threads.submit(
        send, stub, plain("ensemble", text_input=texts([["".join(letters).encode()]]))
    )
    num_served = 0
    while not long.done():
        assert not send(stub, plain("ensemble")).error
        num_served += 1
    assert "max_seq_len" in long.result().error
    assert num_served > 1


def test_end_id_beyond_the_vocabulary_is_ignored(stub: Any) -> None:
    """Such an id makes OpenVINO GenAI write past the end of its logits."""
    beyond = numbers("INT32", [[2**31 - 1]])
    reply = send(stub, plain(CORE, end_id=beyond, min_tokens=numbers("INT32", [[2]])))
    assert reply == send(stub, plain(CORE, pad_id=beyond))


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Transfer-Encoding: chunked\r\n", b"1\r\n \r\n" * 700_000 + b"0\r\n\r\n"),
        (b"Content-Length: 200015\r\n", b'{"text_input": ' + b"[" * 200_000),
    ],
    ids=["chunks", "depth"],
)
def test_request_that_needs_a_large_stack_does_not_end_triton(
    served: Tllm, endpoint: Endpoint, head: bytes, body: bytes
) -> None:
    before = served.state()
    host, _, port = endpoint.http.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=120) as sock:
        sock.sendall(
            b"POST /v2/models/demo/generate HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n" + body
        )
        assert sock.recv(64).split()[1] in (b"400", b"500")
    assert answers(endpoint)
    assert served.state().server_pid == before.server_pid
