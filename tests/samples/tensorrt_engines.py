"""Folders of a TensorRT engine and a tokenizer, with minimal contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.samples.builds import ENGINE
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import describe_source

CHAT_TEMPLATE = "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"


def engine_config(version: str = "1.1.0", **build: Any) -> dict[str, Any]:
    """Return the parts of `config.json` that are read, as trtllm-build writes them."""
    return {
        "version": version,
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "logits_dtype": "float32",
            "vocab_size": 32000,
            "max_position_embeddings": 4096,
            "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
            "quantization": {"quant_algo": None},
        },
        "build_config": {
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "max_batch_size": 16,
            "max_num_tokens": 8192,
            "max_beam_width": 2,
            **build,
        },
    }


def write_engine(directory: Path, config: dict[str, Any] | None = None, num_ranks: int = 2) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config or engine_config()))
    for rank in range(num_ranks):
        (directory / f"rank{rank}.engine").write_bytes(b"engine")
    return directory


def write_legacy_engine(directory: Path, **builder: Any) -> Path:
    """Write the parts of `config.json` that are read, as build.py writes them, and two engines."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "builder_config": {
            "name": "llama", "precision": "float16", "tensor_parallel": 2, "pipeline_parallel": 1,
            "vocab_size": 32000, "max_position_embeddings": 4096, "max_batch_size": 8,
            "max_beam_width": 1, "max_input_len": 2048, "max_output_len": 512, "quant_mode": 0,
            **builder,
        },
        "plugin_config": {"paged_kv_cache": True},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(2):
        (directory / f"llama_float16_tp2_rank{rank}.engine").write_bytes(b"engine")
    return directory


def write_tokenizer(directory: Path, **config: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config_values = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps(config_values | config))
    return directory


def tensorrt_engine(folder: Path, version: str = "1.1.0", **build: Any) -> Engine:
    """Return a described engine at `folder`/engine, with its tokenizer at `folder`/tokenizer."""
    engine = write_engine(folder / "engine", engine_config(version, **build))
    tokenizer = write_tokenizer(folder / "tokenizer")
    return describe_source(ENGINE.model_name, engine, tokenizer, f"engine:{engine}")
