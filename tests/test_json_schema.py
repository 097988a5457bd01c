"""The JSON schema of a tllm.yaml accepts the files that can be read, and only those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing.declaration import Declaration, parse_declaration
from trtllm_serve_cli.json_schema import render_schema
from trtllm_serve_cli.option_fields import option_fields

CHECKOUT = Path(__file__).parents[1]
SCHEMA = render_schema(Declaration, "tllm.yaml")
WHOLE = """\
model: {name: m, source: 'local:x', revision: 1.10, trust_remote_code: true}
engine: {kind: sim, trtllm_version: 1.2, gpu: h200, dir: null}
build: {tp: 2, dtype: float16, lora_dir: [a, b], lora_target_modules: attn_q, max_seq_len: 8}
repository: {layout: llmapi, parameters: {max_queue_size: 3, enable_kv_cache_reuse: false}}
launch: {http_port: 9000, timeout_s: 60.5, mode: mpi, triton_args: [--log-info=no]}
"""


def parse(text: str) -> Declaration:
    return parse_declaration(text, where="tllm.yaml", folder=Path("/there"))


def test_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_whole_file_is_valid() -> None:
    parse(WHOLE)
    jsonschema.validate(yaml.safe_load(WHOLE), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "engine: {kind: sim}",
        "model: {name: m, nmae: m}",
        "model: {name: m}\nengine: {kind: onnx}",
        "model: {name: m}\nbuild: {tp: 0}",
        "model: {name: m}\nbuild: {dtype: float8}",
        "model: {name: m}\nlaunch: {http_port: 70000}",
        "model: {name: m}\nlaunch: {nothing: 1}",
        "model: {name: m}\nrepository: {parameters: [a]}",
    ],
)
def test_refused_file_is_invalid(text: str) -> None:
    with pytest.raises(BadInput):
        parse(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


def test_annotated_example_is_valid_with_the_published_schema() -> None:
    published = json.loads((CHECKOUT / "docs/reference/tllm.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(published)
    text = (CHECKOUT / "examples/tllm.yaml").read_text("utf-8")
    assert {each.name for each in option_fields(Declaration)} == set(yaml.safe_load(text))
    jsonschema.validate(yaml.safe_load(text), published)
    parse(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {"model": {"name": "m"}, "repository": {"parameters": {"max_queue_size": [1]}}},
            published,
        )


def test_every_option_is_explained() -> None:
    def unexplained(schema: dict[str, Any], at: str) -> list[str]:
        found = []
        for name, each in schema.get("properties", {}).items():
            path = f"{at}.{name}" if at else name
            found += unexplained(each, path) if "properties" in each else []
            if "description" not in each:
                found.append(path)
        return found

    assert unexplained(SCHEMA, "") == []
