from __future__ import annotations

import pytest

from tests.fakes.triton.server import FakeTriton, list_inputs
from trtllm_serve_cli.client.ask import embed, stream
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest, Interface, TritonInterface
from trtllm_serve_cli.client.model_info import ModelInfo, fetch_model_config
from trtllm_serve_cli.client.server import (
    change_model,
    fetch_index,
    fetch_versions,
    probe_token,
)
from trtllm_serve_cli.errors import NoServer, RequestFailed, TimedOut

both = pytest.mark.parametrize("interface", ["grpc", "http"])
NOWHERE = Endpoint("127.0.0.1:1", "127.0.0.1:1")


@both
def test_fetches_model_config(triton: FakeTriton, interface: Interface) -> None:
    triton.parameters = {
        "chat_template": "{{ messages }}",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "adds_bos": "true",
        "tool_chat_template": "{{ tools }}",
        "max_seq_len": "2048",
        "engine_kind": "openvino",
        "vocab_size": "500",
        "tokenizer_dir": "/tokenizer",
    }
    triton.is_decoupled = False
    info = fetch_model_config(triton.endpoint, "demo", interface)
    assert info == ModelInfo(
        name="demo",
        chat_template="{{ messages }}",
        bos_token="<s>",
        eos_token="</s>",
        adds_bos=True,
        tool_chat_template="{{ tools }}",
        max_seq_len=2048,
        engine_kind="openvino",
        is_decoupled=False,
        max_batch_size=8,
        vocab_size=500,
        tokenizer_dir="/tokenizer",
        inputs=frozenset(list_inputs("tensorrt_llm_bls")),
        settings_hash=info.settings_hash,
    )


@both
def test_config_without_tllm_parameters(triton: FakeTriton, interface: Interface) -> None:
    triton.parameters = {"max_seq_len": "${max_seq_len}", "chat_template": ""}
    info = fetch_model_config(triton.endpoint, "ensemble", interface)
    assert info == ModelInfo(
        "ensemble",
        max_batch_size=8,
        inputs=frozenset(list_inputs("tensorrt_llm_bls")),
        settings_hash=info.settings_hash,
    )


@both
def test_config_of_an_unknown_model(triton: FakeTriton, interface: Interface) -> None:
    with pytest.raises(RequestFailed, match="does not have a model named 'nope'"):
        fetch_model_config(triton.endpoint, "nope", interface)


@both
def test_config_of_an_unreachable_server(interface: Interface) -> None:
    with pytest.raises(NoServer, match=r"No server responds at 127.0.0.1:1"):
        fetch_model_config(NOWHERE, "demo", interface)


@both
def test_latest_version_is_the_highest_number(
    triton: FakeTriton, interface: TritonInterface
) -> None:
    triton.versions = ("9", "10")
    assert fetch_versions(triton.endpoint, "demo", interface, 20) == ("2.51.0", "10")


@both
def test_timeout_of_a_query_names_no_option_of_a_request(
    silent: Endpoint, interface: TritonInterface
) -> None:
    with pytest.raises(TimedOut, match=r"demo did not finish the request within 0.3 s") as raised:
        fetch_model_config(silent, "demo", interface, 0.3)
    assert "`tllm logs`" in raised.value.next_step
    assert "--" not in raised.value.next_step


@both
def test_timeout_of_an_embedding_names_its_option(
    silent: Endpoint, interface: TritonInterface
) -> None:
    with pytest.raises(TimedOut) as raised:
        embed(silent, "demo", "go", interface, 0.3)
    assert raised.value.next_step == "increase --timeout"


def test_timeout_of_the_index_names_the_server(silent: Endpoint) -> None:
    with pytest.raises(TimedOut) as raised:
        fetch_index(silent, 0.3)
    assert raised.value.what == f"{silent.http} did not finish the request within 0.3 s."
    assert "--" not in raised.value.next_step


def test_timeout_of_a_load_names_its_option(silent: Endpoint) -> None:
    with pytest.raises(TimedOut) as raised:
        change_model(silent, "demo", "load", 0.3)
    assert "increase --timeout" in raised.value.next_step
    assert "--max-tokens" not in raised.value.next_step


@both
def test_probe_requests_one_token_without_streaming(
    triton: FakeTriton, interface: Interface
) -> None:
    """A model that is not decoupled cannot stream, but can be ready."""
    assert probe_token(triton.endpoint, "demo", 20, interface).num_output_tokens
    (received,) = triton.received
    assert (received["max_tokens"], received["stream"]) == (1, False)


def test_probe_raises_the_models_error(triton: FakeTriton) -> None:
    with pytest.raises(RequestFailed, match="does not have a model named 'nope'"):
        probe_token(triton.endpoint, "nope", 20)


@both
def test_does_not_send_the_restricted_token_to_models(
    triton: FakeTriton, interface: Interface
) -> None:
    secret = Endpoint(triton.endpoint.grpc, triton.endpoint.http, restricted_token="secret")
    fetch_model_config(secret, "demo", interface)
    list(stream(secret, "demo", GenerateRequest("go"), interface))
    assert triton.calls and "secret" not in str(triton.calls)
