"""The argument classes of the version, with the fields that tests use.

Names and tags are from tensorrt_llm/llmapi/llm_args.py in NVIDIA/TensorRT-LLM:

- up to 1.2, `DecodingBaseConfig.from_dict` maps the tags `DraftTarget` and `UserProvided` to
  classes whose own `decoding_type` is `Draft_Target` and `User_Provided`;
- since 1.3, `decoding_type` is a discriminator, `Eagle3` exists, and `speculative_model` replaces
  `speculative_model_dir`, which remains as an alias;
- late release candidates of 1.3 lack `onboard_blocks`, deprecate `sink_token_length`,
  `sampler_type` and `allow_advanced_sampling`, and set `num_nextn_predict_layers` themselves;
- `enable_penalty` is from pull request #17701, and the last texts of 1.3 lack `sampler_type`
  (docs/source/developer-guide/telemetry.md).

The release candidates in `RC_…` are those of the dates of these changes.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Literal

from packaging.version import Version

from tensorrt_llm import __version__
from tensorrt_llm.strict_model import AliasChoices, FieldInfo, StrictModel, define

RELEASE = Version(__version__)
DISCRIMINATED = Version("1.3.0rc0")
RC_LATE = Version("1.3.0rc25")
RC_LAST = Version("1.3.0rc26")
_IS_TAGGED = DISCRIMINATED <= RELEASE
_IS_LATE = RELEASE >= RC_LATE
_DEPRECATED = {"status": "deprecated"}


def _fields(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, Any)


KvCacheConfig = define(
    "KvCacheConfig",
    {
        **_fields(
            "enable_block_reuse", "max_tokens", "max_attention_window", "free_gpu_memory_fraction",
            "host_cache_size", "dtype",
        ),
        "sink_token_length": FieldInfo(deprecated=_IS_LATE),
        **({} if _IS_LATE else _fields("onboard_blocks")),
        **(_fields("tokens_per_block") if Version("1.1") <= RELEASE else {}),
    },
)  # fmt: skip
PeftCacheConfig = define(
    "PeftCacheConfig",
    _fields(
        "optimal_adapter_size", "max_adapter_size", "device_cache_percent", "host_cache_size"
    ),
)  # fmt: skip
LoraConfig = define(
    "LoraConfig", _fields("lora_dir", "lora_target_modules", "max_lora_rank", "lora_ckpt_source")
)
SchedulerConfig = define(
    "SchedulerConfig", _fields("capacity_scheduler_policy", "context_chunking_policy")
)
CudaGraphConfig = define(
    "CudaGraphConfig", _fields("batch_sizes", "max_batch_size", "enable_padding")
)


class _FromDict(StrictModel):
    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Return the config of the class with the tag in `data`, up to 1.2."""
        classes = {each.__name__.removesuffix("DecodingConfig"): each for each in DECODING}
        decoding_type = data.pop("decoding_type", None)
        if decoding_type not in classes:
            raise ValueError(f"Invalid decoding type: {decoding_type}")
        return classes[decoding_type](**data)


_SPECULATIVE_MODEL = (
    {
        "speculative_model": FieldInfo(
            validation_alias=AliasChoices(["speculative_model", "speculative_model_dir"])
        ),
        "allow_advanced_sampling": FieldInfo(
            json_schema_extra=_DEPRECATED if _IS_LATE else {"status": "prototype"}
        ),
    }
    if _IS_TAGGED
    else _fields("speculative_model_dir")
)
DecodingBaseConfig = define(
    "DecodingBaseConfig",
    {
        **_fields("max_draft_len"),
        **_SPECULATIVE_MODEL,
        **(_fields("use_rejection_sampling") if _IS_LATE else {}),
        **(_fields("enable_penalty") if RELEASE >= RC_LAST else {}),
    },
    _FromDict,
)


def _decoding(name: str, tag: str, *fields: str, base: type = DecodingBaseConfig) -> type[Any]:
    if not _IS_TAGGED:
        return define(f"{name}DecodingConfig", _fields(*fields), base, decoding_type=tag)
    discriminator = FieldInfo(Literal[tag], tag)
    named = {"decoding_type": discriminator, **_fields(*fields)}
    return define(f"{name}DecodingConfig", named, base)


EagleDecodingConfig = _decoding(
    "Eagle", "Eagle", "eagle_choices", "use_dynamic_tree", "eagle3_one_model"
)
NGramDecodingConfig = _decoding("NGram", "NGram", "max_matching_ngram_size")
DraftTargetDecodingConfig = _decoding("DraftTarget", "Draft_Target")
MTPDecodingConfig = _decoding("MTP", "MTP")
MTPDecodingConfig.model_fields["num_nextn_predict_layers"] = FieldInfo(
    init=False if _IS_LATE else None
)
DECODING = [EagleDecodingConfig, NGramDecodingConfig, DraftTargetDecodingConfig, MTPDecodingConfig]
if _IS_TAGGED:
    Eagle3DecodingConfig = _decoding("Eagle3", "Eagle3", base=EagleDecodingConfig)
    DECODING.append(Eagle3DecodingConfig)
if _IS_LATE:
    DraftTargetDecodingConfig.__private_attributes__ = {"_draft_target_one_model": True}

_SAMPLER: dict[str, Any] = _fields("enable_trtllm_sampler")
if Version("1.1") <= RELEASE < RC_LAST:
    _SAMPLER = {"sampler_type": FieldInfo(json_schema_extra=_DEPRECATED if _IS_LATE else None)}
elif RELEASE >= RC_LAST:
    _SAMPLER = {}
TorchLlmArgs = define(
    "TorchLlmArgs",
    {
        **_fields(
            "model", "tokenizer", "skip_tokenizer_init", "trust_remote_code", "dtype",
            "tensor_parallel_size", "pipeline_parallel_size", "moe_tensor_parallel_size",
            "moe_expert_parallel_size", "max_batch_size", "max_input_len", "max_seq_len",
            "max_num_tokens", "max_beam_width", "guided_decoding_backend",
            "enable_chunked_prefill", "enable_lora", "gather_generation_logits",
            "disable_overlap_scheduler", "enable_iter_perf_stats", "attn_backend",
        ),
        "backend": FieldInfo(json_schema_extra=_DEPRECATED),
        "kv_cache_config": KvCacheConfig,
        "peft_cache_config": PeftCacheConfig | None,
        "lora_config": LoraConfig | None,
        "scheduler_config": SchedulerConfig,
        "cuda_graph_config": CudaGraphConfig | None,
        "speculative_config": reduce(or_, DECODING) | None,
        **_SAMPLER,
    },
)  # fmt: skip
