from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tests.fakes.triton.server import FakeTriton, list_inputs
from trtllm_serve_cli.bench.model.served_model import ServedModel, Target, fetch_model
from trtllm_serve_cli.client.generate import Interface
from trtllm_serve_cli.errors import BadInput, NoServer, RequestFailed, UnknownModel

Serve = Callable[[FakeTriton], str]


def _fetch(address: str, name: str = "tensorrt_llm") -> ServedModel:
    return fetch_model(Target(address, name), "tokens")


def test_fetch_model_reads_server_metadata(serve: Serve) -> None:
    address = serve(FakeTriton())
    assert _fetch(address) == ServedModel(
        address=address,
        name="tensorrt_llm",
        version="1",
        server_version="2.51.0",
        is_decoupled=True,
        max_batch_size=8,
        vocab_size=500,
        inputs=frozenset(list_inputs("tensorrt_llm")),
    )


@pytest.mark.parametrize("vocab_size", [None, "${vocab_size}", "0", ""])
def test_fetch_model_returns_no_vocab_size_if_it_is_not_configured(
    serve: Serve, vocab_size: str | None
) -> None:
    parameters = {} if vocab_size is None else {"vocab_size": vocab_size}
    assert _fetch(serve(FakeTriton(parameters=parameters))).vocab_size is None


def test_fetch_model_reports_an_address_without_a_server() -> None:
    with pytest.raises(NoServer, match=r"No server responds at 127.0.0.1:1\."):
        _fetch("127.0.0.1:1")


@pytest.mark.parametrize("interface", ["grpc", "http"])
def test_fetch_model_times_out_on_a_silent_server(
    interface: Interface,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = Target(f"127.0.0.1:{silent.getsockname()[1]}", interface=interface)
        with pytest.raises(NoServer) as missing:
            fetch_model(target, "tokens", timeout_s=0.1)
    assert missing.value.why == "the server did not respond within 0.1 s"


def test_fetch_model_reports_an_unknown_model(serve: Serve) -> None:
    with pytest.raises(RequestFailed, match="The server does not have a model named 'nope'"):
        _fetch(serve(FakeTriton()), "nope")


def test_fetch_model_rejects_a_model_that_is_not_an_llm(serve: Serve) -> None:
    refused = r"does not accept token ids(.|\n)*input_ids, request_output_len"
    with pytest.raises(BadInput, match=refused) as raised:
        _fetch(serve(FakeTriton(input_names=("input_lengths", "image"))))
    assert not isinstance(raised.value, UnknownModel)
    assert "or run `tllm bench end-to-end` to send text" in raised.value.next_step
