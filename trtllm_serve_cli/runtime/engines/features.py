"""What each engine kind can do with upstream's tensors, as data.

`docs/engines.md` is made of this, and so is the answer to a request that asks for too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine import InvalidRequest

ENGINE_KINDS = ("openvino", "pytorch", "sim", "tensorrt", "vllm")
# Why the simulated engine cannot do what is about the tokens themselves.
_NO_MODEL = "it has a timing, and no model"


@dataclass(frozen=True, slots=True)
class Feature:
    """Something a request may ask for.

    `tensors` ask for it, of `tensorrt_llm` and of the text models. `without` says of each engine
    kind that cannot do it why not; `note` is how a kind that can differs from TensorRT-LLM.
    """

    name: str
    tensors: tuple[str, ...]
    without: dict[str, str]
    note: str = ""


FEATURES = (
    Feature(
        "sampling",
        ("temperature", "runtime_top_k", "runtime_top_p", "top_k", "top_p", "seed"),
        without={},
        note="pytorch: greedy with drafts of eagle or mtp; "
        "sim: tokens of the prompt, drawn by the seed, whatever else is asked for; "
        "vllm: temperatures up to 2",
    ),
    Feature(
        "top-p decay",
        ("runtime_top_p_min", "runtime_top_p_decay", "runtime_top_p_reset_ids"),
        without={
            "openvino": "OpenVINO GenAI samples with one top-p for the whole answer",
            "pytorch": "requests reach it with one top-p for the whole answer",
            "sim": _NO_MODEL,
            "vllm": "requests reach it with one top-p for the whole answer",
        },
    ),
    Feature(
        "penalties",
        ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens"),
        without={},
        note="openvino: presence and frequency penalties from -2 to 2; no penalties with beams; "
        "pytorch: none with speculative decoding; sim: they change nothing; "
        "vllm: presence and frequency penalties from -2 to 2",
    ),
    Feature(
        "several sequences",
        ("num_return_sequences",),
        without={},
        note="openvino: streams them when they end, not token by token; "
        "pytorch: not with speculative decoding",
    ),
    Feature(
        "beam search",
        ("beam_width", "len_penalty", "length_penalty", "early_stopping"),
        without={"sim": _NO_MODEL, "vllm": "vLLM's engine has no beam search"},
        note="openvino: the beams arrive together, when they end; "
        "pytorch: they arrive together, too, and all requests are as wide as max_beam_width",
    ),
    Feature(
        "diverse beams",
        ("beam_search_diversity_rate",),
        without={"sim": _NO_MODEL, "vllm": "vLLM's engine has no beam search"},
        note="openvino: as diverse beam search with a group for each beam",
    ),
    Feature(
        "stop and bad words",
        ("stop_words_list", "bad_words_list", "stop_words", "bad_words"),
        without={},
        note="openvino: they work on the text, so however a word is tokenised; bad words not "
        "together with guided decoding; "
        "pytorch: as tokens; with beams, stop words of one token each; sim: as tokens; "
        "vllm: as tokens",
    ),
    Feature(
        "log probabilities",
        ("return_log_probs",),
        without={"sim": _NO_MODEL},
        note="pytorch: not with speculative decoding",
    ),
    Feature(
        "guided decoding",
        ("guided_decoding_guide_type", "guided_decoding_guide"),
        without={"sim": _NO_MODEL},
        note="openvino: a guide that takes over 2 s to compile is refused; "
        "pytorch: of a model served with guided_decoding_backend; "
        "vllm: an answer whose request names no end token ends with the tokenizer's",
    ),
    Feature(
        "performance figures",
        ("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
        without={},
        note="openvino: reused blocks are deduced from the prompts seen; "
        "vllm: blocks are deduced from the numbers of tokens",
    ),
    Feature(
        "logits",
        ("return_context_logits", "return_generation_logits"),
        without={
            "openvino": "OpenVINO GenAI keeps the logits to itself",
            "pytorch": "they would not fit between the engine's process and Triton's",
            "sim": _NO_MODEL,
            "vllm": "they would not fit between the engine's process and Triton's",
        },
    ),
    Feature(
        "embedding bias",
        ("embedding_bias", "embedding_bias_words", "embedding_bias_weights"),
        without={
            "openvino": "OpenVINO GenAI takes no bias on its logits",
            "pytorch": "requests reach it without one",
            "sim": _NO_MODEL,
            "vllm": "requests reach it without one",
        },
    ),
    Feature(
        "LoRA",
        ("lora_task_id", "lora_weights", "lora_config"),
        without={"sim": _NO_MODEL},
        note="openvino: by `lora_name`, too; each loaded adapter (max_loras) takes a copy of the "
        "model's memory, and has its own batch and KV cache; "
        "pytorch: by `lora_name`, too, of a model imported with lora_target_modules or lora_dir; "
        "vllm: by `lora_name`, too, of a model imported with max_lora_rank",
    ),
    Feature(
        "draft tokens of the caller's",
        (
            "draft_input_ids",
            "draft_logits",
            "draft_acceptance_threshold",
            "num_draft_tokens",
            "use_draft_logits",
        ),
        without={
            "openvino": "it drafts by itself, when served with num_draft_tokens",
            "pytorch": "it drafts by itself, when imported with speculative_decoding_mode",
            "sim": "its steps give each sequence one token",
            "vllm": "it drafts by itself, when served with speculative_config in vllm_args",
        },
    ),
    Feature(
        "lookahead decoding",
        ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
        without={
            "openvino": "it drafts by itself, when served with num_draft_tokens",
            "pytorch": "TensorRT-LLM has it for its own engines only",
            "sim": "its steps give each sequence one token",
            "vllm": "TensorRT-LLM has it for its own engines only",
        },
    ),
    Feature(
        "prompt tuning",
        (
            "prompt_embedding_table",
            "prompt_vocab_size",
            "prompt_table_extra_ids",
            "prompt_table_extra_id",
        ),
        without={
            "openvino": "OpenVINO GenAI takes token ids alone",
            "pytorch": "TensorRT-LLM's PyTorch backend takes no prompt table",
            "sim": _NO_MODEL,
            "vllm": "requests reach it as token ids alone",
        },
    ),
    Feature(
        "images and video",
        (
            "image_input",
            "image_bytes_input",
            "image_url_input",
            "image_sizes_input",
            "video_bytes_input",
            "mrope_rotary_cos_sin",
            "mrope_position_deltas",
            "cross_attention_mask",
            "skip_cross_attn_blocks",
        ),
        without={
            "openvino": "only text models are served",
            "pytorch": "only text models are served",
            "sim": "only text models are simulated",
            "vllm": "only text models are served",
        },
    ),
    Feature(
        "encoders",
        ("encoder_input_features", "encoder_output_lengths", "decoder_text_input"),
        without={
            "openvino": "only models without an encoder are served",
            "pytorch": "only models without an encoder are served",
            "sim": "only models without an encoder are simulated",
            "vllm": "only models without an encoder are served",
        },
    ),
    Feature(
        "KV cache retention",
        (
            "retention_token_range_starts",
            "retention_token_range_ends",
            "retention_token_range_priorities",
            "retention_token_range_durations_ms",
            "retention_decode_priority",
            "retention_decode_duration_ms",
        ),
        without={
            "openvino": "OpenVINO GenAI evicts the least recently used blocks first",
            "pytorch": "requests reach it without priorities for blocks",
            "sim": "it evicts the least recently used blocks first",
            "vllm": "vLLM evicts the least recently used blocks first",
        },
    ),
    Feature(
        "disaggregated serving",
        ("context_phase_params",),
        without={
            "openvino": "one process does both phases",
            "pytorch": "one engine does both phases",
            "sim": "one engine does both phases",
            "vllm": "one engine does both phases",
        },
    ),
)


def find_feature(tensor: str) -> Feature | None:
    """What a tensor asks for."""
    return next((each for each in FEATURES if tensor in each.tensors), None)


def explain_refusal(tensor: str, engine_kind: str) -> str:
    """Why a request that sets `tensor` cannot be served, and what serves it."""
    feature = find_feature(tensor)
    why = feature.without.get(engine_kind, "") if feature else ""
    able = [
        kind
        for kind in ENGINE_KINDS
        if kind != engine_kind and feature and kind not in feature.without
    ]
    asked = f" ({feature.name})" if feature else ""
    because = f": {why}" if why else ""
    serve = f", or serve this model with the engine kind {' or '.join(able)}" if able else ""
    return (
        f"{tensor}{asked} is not supported by the engine kind {engine_kind}{because}; "
        f"leave it out{serve}"
    )


def refuse_set(get: Callable[[str], Any], names: Iterable[str], engine_kind: str) -> None:
    """Raise `InvalidRequest` when a tensor of `names`, which nothing acts on, asks for something.

    Zero and false ask for nothing, so that clients which always send a tensor still work.
    """
    for name in names:
        tensor = get(name)
        if tensor is not None and tensor.size and np.any(tensor.astype(bool)):
            raise InvalidRequest(explain_refusal(name, engine_kind))
