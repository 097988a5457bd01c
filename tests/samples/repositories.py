"""Model repositories, created without an import."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.samples.builds import ENGINE
from trtllm_serve_cli.build.engine import write_engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.model.store import ImportedModel, read_manifest
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository


def add_model(home: Home, name: str, engine_path: Path | None = None) -> ImportedModel:
    """Add a model whose engine is only metadata, in the engine store by default."""
    path = engine_path or home.engines / name
    path.mkdir(parents=True, exist_ok=True)
    engine = dataclasses.replace(ENGINE, path=path)
    write_engine(engine, path)
    write_repository(plan_repository(name, engine, ServingOptions()), home.models / name)
    return read_manifest(home.models / name)


def copy_upstream(directory: Path) -> Path:
    """Write a shortened repository in upstream's layout, with unfilled templates."""
    for model, text in UPSTREAM.items():
        (directory / model / "1").mkdir(parents=True)
        (directory / model / "config.pbtxt").write_text(text, encoding="utf-8")
        if 'backend: "python"' in text:
            (directory / model / "1" / "model.py").write_text("")
    return directory


def tensor(name: str, data_type: str) -> str:
    return f'{{ name: "{name}" data_type: {data_type} dims: [ -1 ] }}'


UPSTREAM = {
    "preprocessing": f"""\
# Text to ids.
name: "preprocessing"
backend: "python"
max_batch_size: ${{triton_max_batch_size}}
input [ {tensor("QUERY", "TYPE_STRING")}, {tensor("REQUEST_OUTPUT_LEN", "TYPE_INT32")} ]
output [ {tensor("INPUT_ID", "TYPE_INT32")}, {tensor("REQUEST_INPUT_LEN", "TYPE_INT32")} ]
parameters {{
  key: "tokenizer_dir"
  value: {{
    string_value: "${{tokenizer_dir}}"
  }}
}}
instance_group [ {{ count: ${{preprocessing_instance_count}} kind: KIND_CPU }} ]
""",
    "tensorrt_llm": f"""\
name: "tensorrt_llm"
backend: "${{triton_backend}}"
max_batch_size: ${{triton_max_batch_size}}
model_transaction_policy {{ decoupled: ${{decoupled_mode}} }}
dynamic_batching {{
  preferred_batch_size: [ ${{triton_max_batch_size}} ]
}}
input [ {tensor("input_ids", "TYPE_INT32")}, {tensor("input_lengths", "TYPE_INT32")} ]
output [ {tensor("batch_index", "TYPE_INT32")} ]
parameters: {{ key: "gpt_model_path" value: {{ string_value: "${{engine_dir}}" }} }}
parameters: {{ key: "gpt_model_type" value: {{ string_value: "${{batching_strategy}}" }} }}
parameters: {{ key: "max_beam_width" value: {{ string_value: "${{max_beam_width}}" }} }}
""",
    "ensemble": f"""\
name: "ensemble"
platform: "ensemble"
max_batch_size: ${{triton_max_batch_size}}
input [ {tensor("text_input", "TYPE_STRING")}, {tensor("max_tokens", "TYPE_INT32")} ]
output [ {tensor("batch_index", "TYPE_INT32")} ]
ensemble_scheduling {{ step [
  {{
    model_name: "preprocessing"
    input_map {{ key: "QUERY" value: "text_input" }}
    input_map {{ key: "REQUEST_OUTPUT_LEN" value: "max_tokens" }}
    output_map {{ key: "INPUT_ID" value: "_IDS" }}
    output_map {{ key: "REQUEST_INPUT_LEN" value: "_LENGTH" }}
  }},
  {{
    model_name: "tensorrt_llm"
    input_map {{ key: "input_ids" value: "_IDS" }}
    input_map {{ key: "input_lengths" value: "_LENGTH" }}
    output_map {{ key: "batch_index" value: "batch_index" }}
  }}
] }}
""",
    "tensorrt_llm_bls": f"""\
name: "tensorrt_llm_bls"
backend: "python"
max_batch_size: ${{triton_max_batch_size}}
input [ {tensor("text_input", "TYPE_STRING")} ]
output [ {tensor("text_output", "TYPE_STRING")} ]
parameters: {{
  key: "tensorrt_llm_model_name"
  value: {{ string_value: "${{tensorrt_llm_model_name}}" }}
}}
""",
}
