from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.bench.fake_triton import FakeTriton
from trtllm_serve_cli.bench.served_model import ServedModel, Target, fetch_model
from trtllm_serve_cli.errors import NoServer, RequestFailed, UnknownModel

Serve = Callable[[FakeTriton], str]


def _fetch(address: str, name: str = "tensorrt_llm") -> ServedModel:
    return asyncio.run(fetch_model(Target(address, name), "tokens"))


def test_fetch_model_reads_what_the_server_says(serve: Serve) -> None:
    address = serve(FakeTriton())
    assert _fetch(address) == ServedModel(
        address=address,
        name="tensorrt_llm",
        version="1",
        server_version="2.51.0",
        is_decoupled=True,
        max_batch_size=8,
        vocab_size=500,
        inputs=frozenset(FakeTriton.inputs),
    )


@pytest.mark.parametrize("vocab_size", [None, "${vocab_size}", "0", ""])
def test_fetch_model_knows_when_no_vocabulary_is_told(serve: Serve, vocab_size: str | None) -> None:
    assert _fetch(serve(FakeTriton(vocab_size=vocab_size))).vocab_size is None


def test_fetch_model_explains_a_dead_address() -> None:
    with pytest.raises(NoServer, match=r"No server answers at 127.0.0.1:1\."):
        _fetch("127.0.0.1:1")


def test_fetch_model_explains_an_unknown_model(serve: Serve) -> None:
    with pytest.raises(RequestFailed, match="The server has no model 'gpt'"):
        _fetch(serve(FakeTriton()), "gpt")


def test_fetch_model_refuses_what_is_not_an_llm(serve: Serve) -> None:
    with pytest.raises(UnknownModel, match=r"not an LLM(.|\n)*input_ids, request_output_len"):
        _fetch(serve(FakeTriton(inputs=("input_lengths", "image"))))
