"""Declare the capabilities of the `pytorch` engine kind and load its engine."""

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

_NOT_WITH_DRAFTS = "not with speculative decoding"
_CAPABILITIES = caps.Capabilities(
    unsupported={
        caps.TOP_P_DECAY: "the engine uses one top-p for the whole response",
        caps.LOGITS: "logits are too large to send from the engine worker to Triton",
        caps.CLIENT_DRAFTS: (
            "the engine generates draft tokens itself if the model is imported with "
            "speculative_decoding_mode"
        ),
        caps.LOOKAHEAD_DECODING: "only TensorRT engines support lookahead decoding",
        caps.PROMPT_TUNING: "TensorRT-LLM's PyTorch backend does not accept a prompt table",
        caps.MULTIMODAL: "only text models are served",
        caps.ENCODERS: "only models without an encoder are served",
        caps.KV_CACHE_RETENTION: "block priorities are not passed to the engine",
        caps.DISAGGREGATED_SERVING: "a single engine runs both context and generation",
        caps.EMBEDDINGS: "the engine worker reads only generated tokens from TensorRT-LLM",
        **caps.UPSTREAM_ONLY,
    },
    notes={
        caps.SAMPLING: (
            "before the later release candidates of TensorRT-LLM 1.3, speculative decoding with "
            "eagle or mtp supports only greedy decoding"
        ),
        caps.PENALTIES: (
            "with speculative decoding, only if speculative_config sets enable_penalty "
            "(TensorRT-LLM 1.3)"
        ),
        caps.SEVERAL_SEQUENCES: _NOT_WITH_DRAFTS,
        caps.BEAM_SEARCH: (
            "all beams are returned when the request ends; the beam_width of each request must "
            "equal max_beam_width"
        ),
        caps.STOP_AND_BAD_WORDS: (
            "matched as tokens; with beam search, each stop word must be a single token"
        ),
        caps.MIN_P: _NOT_WITH_DRAFTS,
        caps.LOG_PROBABILITIES: _NOT_WITH_DRAFTS,
        caps.TOP_LOG_PROBABILITIES: (
            "only with the TorchSampler of TensorRT-LLM 1.2 or later; not with speculative decoding"
        ),
        caps.PROMPT_LOG_PROBABILITIES: (
            "only with TensorRT-LLM 1.2 or later; not with speculative decoding"
        ),
        caps.EMBEDDING_BIAS: _NOT_WITH_DRAFTS,
        caps.GUIDED_DECODING: "only if the model is served with guided_decoding_backend",
        caps.LORA: (
            "only if the model is imported with lora_target_modules or lora_dir; adapters can also "
            "be selected by `lora_name`"
        ),
    },
)


def _worker_config(parameters: Parameters) -> dict[str, Any]:
    entries = {name: parameters.text(name, "") for name in LLM_ARGUMENTS.parameters}
    return llm_config(arguments_of(entries), parameters)


def _import_packages(config: dict[str, Any]) -> None:
    # Change the environment variables before the import, because MPI and CUDA may read them during
    # the import.
    leave_mpi_job(os.environ)
    choose_gpus(os.environ, config["gpu_device_ids"])
    from . import engine  # noqa: F401


def _load(config: dict[str, Any]) -> Engine:
    from .engine import PyTorchEngine

    return PyTorchEngine(config)


def _read_model_yaml(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the `config.pbtxt` parameters for `LLM` arguments from `model.yaml`.

    Ignore `triton_config`, which is not an argument for `LLM`.
    """
    nested = nest(dict(arguments))
    nested.pop("triton_config", None)
    return LLM_ARGUMENTS.write(nested)


KIND = RuntimeKind(
    _CAPABILITIES, _worker_config, _load, _read_model_yaml, import_packages=_import_packages
)
