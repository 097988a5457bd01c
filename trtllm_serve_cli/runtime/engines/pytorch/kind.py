"""TensorRT-LLM's LLM API: `pytorch`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...engine import Engine
from ...gpu_environment import choose_gpus, leave_mpi_job
from ...triton.model_yaml import nest
from ...triton.parameters import Parameters
from .. import capabilities as caps
from ..kinds import RuntimeKind
from ..worker_config import llm_config
from .arguments import LLM_ARGUMENTS, arguments_of

_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: "requests reach it with one top-p for the whole answer",
        caps.LOGITS: "they would not fit between the engine's process and Triton's",
        caps.EMBEDDING_BIAS: "requests reach it without one",
        caps.CALLER_DRAFTS: "it drafts by itself, when imported with speculative_decoding_mode",
        caps.LOOKAHEAD_DECODING: "TensorRT-LLM has it for its own engines only",
        caps.PROMPT_TUNING: "TensorRT-LLM's PyTorch backend takes no prompt table",
        caps.MULTIMODAL: "only text models are served",
        caps.ENCODERS: "only models without an encoder are served",
        caps.KV_CACHE_RETENTION: "requests reach it without priorities for blocks",
        caps.DISAGGREGATED_SERVING: "one engine does both phases",
    },
    notes={
        caps.SAMPLING: "greedy with drafts of eagle or mtp",
        caps.PENALTIES: "none with speculative decoding",
        caps.SEVERAL_SEQUENCES: "not with speculative decoding",
        caps.BEAM_SEARCH: (
            "they arrive together, too, and all requests are as wide as max_beam_width"
        ),
        caps.STOP_AND_BAD_WORDS: "as tokens; with beams, stop words of one token each",
        caps.LOG_PROBABILITIES: "not with speculative decoding",
        caps.GUIDED_DECODING: "of a model served with guided_decoding_backend",
        caps.LORA: "by `lora_name`, too, of a model imported with lora_target_modules or lora_dir",
    },
)


def _worker_config(parameters: Parameters) -> dict[str, Any]:
    entries = {name: parameters.text(name, "") for name in LLM_ARGUMENTS.parameters}
    return llm_config(arguments_of(entries), parameters)


def _load(config: dict[str, Any]) -> Engine:
    # MPI and CUDA read the environment when the package is imported.
    leave_mpi_job(os.environ)
    choose_gpus(os.environ, config["gpu_device_ids"])
    from .engine import PyTorchEngine

    return PyTorchEngine(config)


def _read_model_yaml(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of a `config.pbtxt` for these arguments of TensorRT-LLM's `LLM`."""
    nested = nest(dict(arguments))
    nested.pop("triton_config", None)
    return LLM_ARGUMENTS.write(nested)


KIND = RuntimeKind(_CAPABILITIES, _worker_config, _load, _read_model_yaml)
