"""Define the optional request features and the capabilities of engine kinds.

Each engine kind declares `Capabilities` in its `kind.py`. A request that sets a tensor of an
unsupported feature fails with an error that names the tensor, the feature, the reason and any
other engine kinds that support the feature. `docs/reference/capabilities.md` is generated from this
module and each `kind.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Feature:
    """An optional request feature.

    A request uses the feature if any of `tensors` has a value that is not zero, false or empty. If
    models use different names for an input, for example `runtime_top_k` and `top_k`, `tensors`
    contains all names. If the feature has no tensors, `fields` contains the fields or the endpoint
    of the OpenAI API that use the feature.
    """

    name: str
    tensors: tuple[str, ...]
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The request features that an engine kind supports.

    `unsupported` maps each unsupported feature to the reason. `notes` maps supported features to
    remarks for the documentation: conditions, limits and differences from TensorRT-LLM. Features
    without remarks are omitted from `notes`.
    """

    unsupported: Mapping[Feature, str] = field(default_factory=dict)
    notes: Mapping[Feature, str] = field(default_factory=dict)


SAMPLING = Feature(
    "sampling",
    ("temperature", "runtime_top_k", "runtime_top_p", "top_k", "top_p", "seed"),
)

MIN_P = Feature(
    "min-p",
    (),
    ("min_p",),
)

TOP_P_DECAY = Feature(
    "top-p decay",
    ("runtime_top_p_min", "runtime_top_p_decay", "runtime_top_p_reset_ids"),
)

PENALTIES = Feature(
    "penalties",
    ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens"),
)

SEVERAL_SEQUENCES = Feature(
    "several sequences",
    ("num_return_sequences",),
)

BEAM_SEARCH = Feature(
    "beam search",
    ("beam_width", "len_penalty", "length_penalty", "early_stopping"),
)

DIVERSE_BEAMS = Feature(
    "diverse beams",
    ("beam_search_diversity_rate",),
)

STOP_AND_BAD_WORDS = Feature(
    "stop and bad words",
    ("stop_words_list", "bad_words_list", "stop_words", "bad_words"),
)

LOG_PROBABILITIES = Feature(
    "log probabilities",
    ("return_log_probs",),
)

TOP_LOG_PROBABILITIES = Feature(
    "log probabilities of alternatives",
    (),
    ("top_logprobs", "logprobs"),
)

PROMPT_LOG_PROBABILITIES = Feature(
    "log probabilities of the prompt",
    (),
    ("echo` with `logprobs",),
)

GUIDED_DECODING = Feature(
    "guided decoding",
    ("guided_decoding_guide_type", "guided_decoding_guide"),
)

PERFORMANCE_METRICS = Feature(
    "performance metrics",
    ("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
)

LOGITS = Feature(
    "logits",
    ("return_context_logits", "return_generation_logits"),
)

EMBEDDING_BIAS = Feature(
    "embedding bias",
    ("embedding_bias", "embedding_bias_words", "embedding_bias_weights"),
)

LORA = Feature(
    "LoRA",
    ("lora_task_id", "lora_weights", "lora_config", "lora_name"),
)

CLIENT_DRAFTS = Feature(
    "draft tokens from the client",
    (
        "draft_input_ids",
        "draft_logits",
        "draft_acceptance_threshold",
        "num_draft_tokens",
        "use_draft_logits",
    ),
)

LOOKAHEAD_DECODING = Feature(
    "lookahead decoding",
    ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
)

PROMPT_TUNING = Feature(
    "prompt tuning",
    (
        "prompt_embedding_table",
        "prompt_vocab_size",
        "prompt_table_extra_ids",
        "prompt_table_extra_id",
    ),
)

MULTIMODAL = Feature(
    "images and video",
    (
        "image_input",
        "image_bytes_input",
        "image_url_input",
        "image_url",
        "image_sizes_input",
        "video_bytes_input",
        "mrope_rotary_cos_sin",
        "mrope_position_deltas",
        "cross_attention_mask",
        "skip_cross_attn_blocks",
    ),
)

ENCODERS = Feature(
    "encoders",
    ("encoder_input_features", "encoder_output_lengths", "decoder_text_input"),
)

KV_CACHE_RETENTION = Feature(
    "KV cache retention",
    (
        "retention_token_range_starts",
        "retention_token_range_ends",
        "retention_token_range_priorities",
        "retention_token_range_durations_ms",
        "retention_decode_priority",
        "retention_decode_duration_ms",
    ),
)

DISAGGREGATED_SERVING = Feature(
    "disaggregated serving",
    ("context_phase_params",),
)

ADAPTER_PATHS = Feature(
    "adapters from paths",
    ("lora_id", "lora_path", "lora_ckpt_source"),
)

LOGITS_PROCESSORS = Feature(
    "logits post-processors",
    ("sampling_param_logits_post_processor_name",),
)

EMBEDDINGS = Feature(
    "embeddings",
    (),
    ("/v1/embeddings",),
)

# Maps each feature that no engine kind supports to the reason. Only NVIDIA's Triton model for the
# LLM API supports these features.
UPSTREAM_ONLY: Mapping[Feature, str] = {
    ADAPTER_PATHS: "adapters are read from lora_prefetch_dir and selected by lora_name",
    LOGITS_PROCESSORS: "only NVIDIA's Triton model for the LLM API runs Python code for each token",
}

FEATURES = (
    SAMPLING,
    MIN_P,
    TOP_P_DECAY,
    PENALTIES,
    SEVERAL_SEQUENCES,
    BEAM_SEARCH,
    DIVERSE_BEAMS,
    STOP_AND_BAD_WORDS,
    LOG_PROBABILITIES,
    TOP_LOG_PROBABILITIES,
    PROMPT_LOG_PROBABILITIES,
    GUIDED_DECODING,
    PERFORMANCE_METRICS,
    LOGITS,
    EMBEDDING_BIAS,
    LORA,
    CLIENT_DRAFTS,
    LOOKAHEAD_DECODING,
    PROMPT_TUNING,
    MULTIMODAL,
    ENCODERS,
    KV_CACHE_RETENTION,
    DISAGGREGATED_SERVING,
    ADAPTER_PATHS,
    LOGITS_PROCESSORS,
    EMBEDDINGS,
)


def find_feature(tensor: str) -> Feature | None:
    """Return the feature that uses `tensor`, or None if no feature does."""
    return next((each for each in FEATURES if tensor in each.tensors), None)
