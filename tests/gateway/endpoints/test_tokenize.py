from __future__ import annotations

from tests.gateway.fakes import TEMPLATE, FakeBackend, make_client
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway.config import ServedModel

MODEL = {"model": "demo"}
INFO = ModelInfo("demo", max_seq_len=200, eos_token="</s>")


def test_tokenizer_info_describes_the_special_tokens() -> None:
    with make_client(FakeBackend(), info=INFO) as client:
        answers = [client.get("/tokenizer_info", params=each).json() for each in ({}, MODEL)]
    expected = {
        "tokenizer_class": "LetterTokenizer",
        "bos_token": None,
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        "model_max_length": 200,
    }
    assert answers == [expected, expected]


def test_model_is_optional_if_the_gateway_serves_only_one() -> None:
    with make_client(FakeBackend()) as client:
        ids = client.post("/tokenize", json={"prompt": "ab"}).json()["tokens"]
        text = client.post("/detokenize", json={"tokens": ids}).json()
    assert (ids, text) == ([97, 98], {"prompt": "ab"})


def test_model_is_required_if_the_gateway_serves_several() -> None:
    served = tuple(ServedModel(name, name, Endpoint()) for name in ("demo", "other"))
    with make_client(FakeBackend(), {"models": served}) as client:
        answers = [
            client.post("/tokenize", json={"prompt": "a"}),
            client.post("/detokenize", json={"tokens": [97]}),
            client.get("/tokenizer_info"),
        ]
        unknown = client.get("/tokenizer_info?model=third")
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "model"
        assert "demo, other" in answer.json()["error"]["message"]
    assert unknown.status_code == 404
