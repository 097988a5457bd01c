from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.fakes import FakeBackend, make_client, make_model
from trtllm_serve_cli.client.model_info import parse_model_config
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.schema.sampling import SamplingDefaults
from trtllm_serve_cli.gateway.served_model import read_extra_end_ids, read_sampling_defaults

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
DEFAULTS = SamplingDefaults(temperature=0.25, top_p=0.5, top_k=20, repetition_penalty=1.25)


PARAMETERS = {"gpt_model_path": "/home/a/engines/demo-abc", "max_num_seqs": "64"}


def find_fingerprint(parameters: dict[str, str], **changes: Any) -> str:
    values = {name: {"string_value": value} for name, value in parameters.items()}
    info = parse_model_config("demo", {"parameters": values})
    return make_model(FakeBackend(), info=info, **changes).fingerprint


def test_fingerprint_identifies_the_engine_and_its_settings() -> None:
    fingerprint = find_fingerprint(PARAMETERS)
    moved = {**PARAMETERS, "gpt_model_path": "/home/b/engines/demo-abc"}
    assert find_fingerprint(moved, created=2) == fingerprint
    others = [
        find_fingerprint({**PARAMETERS, "gpt_model_path": "/home/a/engines/demo-def"}),
        find_fingerprint({**PARAMETERS, "max_num_seqs": "32"}),
        find_fingerprint(PARAMETERS, sampling_defaults=DEFAULTS),
        find_fingerprint(PARAMETERS, template=ChatTemplate("{{ messages }}")),
    ]
    assert len({fingerprint, *others}) == 5


def test_all_responses_have_the_fingerprint() -> None:
    with make_client(FakeBackend()) as client:
        responses = [
            client.post(path, json={**body, "stream": stream}).text
            for path, body in (
                ("/v1/chat/completions", CHAT),
                ("/v1/completions", {"model": "demo", "prompt": "Hi"}),
            )
            for stream in (False, True)
        ]
    found = [re.findall(r'"system_fingerprint":"(fp_\w+)"', each) for each in responses]
    assert all(found)
    assert set(chain(*found)) == {make_model(FakeBackend()).fingerprint}


def write(folder: Path, content: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(content), "utf-8")
    return folder


def test_defaults_are_those_of_the_model(tmp_path: Path) -> None:
    content = {"do_sample": True, "temperature": 0.25, "top_k": 20, "top_p": 0.5}
    folder = write(tmp_path, {**content, "repetition_penalty": 1.25, "eos_token_id": [1, 2]})
    assert read_sampling_defaults(folder) == DEFAULTS
    assert read_extra_end_ids(folder, 1) == (2,)


@pytest.mark.parametrize("content", [[], 5, {"temperature": "hot", "top_k": 2.5, "top_p": 7}])
def test_invalid_values_are_ignored(tmp_path: Path, content: Any) -> None:
    assert read_sampling_defaults(write(tmp_path, content)) == SamplingDefaults()
    assert read_sampling_defaults(tmp_path / "missing") == SamplingDefaults()


def submit(path: str, body: dict[str, Any], **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Return the answer, and the sampling parameters that reach the engine."""
    backend = FakeBackend()
    changes = {"sampling_defaults": DEFAULTS, **changes}
    with make_client(backend, **changes) as client:
        answer = client.post(path, json=body).json()
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return answer, {name: backend.submitted[0].get(name) for name in names}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "demo", "prompt": "Hi"}),
        ("/v1/messages", {**CHAT, "max_tokens": 5}),
        ("/v1/responses", {"model": "demo", "input": "Hi"}),
    ],
)
def test_requests_override_the_defaults(path: str, body: dict[str, Any]) -> None:
    answer, fields = submit(path, body)
    assert fields == {
        "temperature": 0.25, "top_p": 0.5, "top_k": 20, "min_p": None, "repetition_penalty": 1.25,
    }  # fmt: skip
    if path == "/v1/responses":
        assert (answer["temperature"], answer["top_p"]) == (0.25, 0.5)
    _, fields = submit(path, {**body, "temperature": 1, "top_p": 1})
    assert (fields["temperature"], fields["top_p"], fields["top_k"]) == (1, 1, 20)
    _, fields = submit(path, {**body, "temperature": 0})
    assert (fields["temperature"], fields["top_k"]) == (None, 1)


def test_scores_of_prompts_do_not_use_the_defaults() -> None:
    body = {"model": "demo", "prompt": "Hi", "echo": True, "logprobs": 0}
    for max_tokens in (0, 1):
        _, fields = submit("/v1/completions", {**body, "max_tokens": max_tokens, "temperature": 0})
        assert (fields["top_k"], fields["repetition_penalty"]) == (1, None)


def test_unsupported_defaults_are_not_applied() -> None:
    defaults = {"sampling_defaults": SamplingDefaults(min_p=0.5, top_p=0.5)}
    _, fields = submit("/v1/chat/completions", CHAT, engine_kind="tensorrt", **defaults)
    assert (fields["min_p"], fields["top_p"]) == (None, 0.5)
    _, fields = submit("/v1/chat/completions", CHAT, engine_kind="vllm", **defaults)
    assert fields["min_p"] == 0.5
