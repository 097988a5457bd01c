"""Complete plans of TensorRT engines, and that the programs accept them."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from tests.build.tensorrt.samples import MODELS, VERSIONS, check_step, options_in, plan
from tests.drawn_examples import draw_examples
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.choices import Dtype, KvCacheDtype, Quantization, SpeculativeMode
from trtllm_serve_cli.errors import BadInput

_SCRATCH = "{work}/.scratch"


def test_a_plan_converts_and_builds() -> None:
    assert plan("llama-2-7b", "0.9.0", tp=2, max_batch_size=8) == (
        BuildStep(
            "Convert the checkpoint for TensorRT-LLM",
            (
                "/venv/bin/python", "/examples/llama/convert_checkpoint.py",
                "--model_dir", "/models/my model", "--output_dir", _SCRATCH,
                "--dtype", "float16", "--tp_size", "2",
            ),
            inputs=("/models/my model",),
            outputs=(
                f"{_SCRATCH}/config.json",
                f"{_SCRATCH}/rank0.safetensors",
                f"{_SCRATCH}/rank1.safetensors",
            ),
            estimated_bytes=2 * 6_738_415_616,
        ),
        BuildStep(
            "Build the engine for 2 GPUs",
            (
                "trtllm-build", "--checkpoint_dir", _SCRATCH, "--output_dir", "{work}",
                "--output_timing_cache", f"{_SCRATCH}/model.cache", "--max_batch_size", "8",
            ),
            inputs=(_SCRATCH,),
            outputs=("{work}/config.json", "{work}/rank0.engine", "{work}/rank1.engine"),
            estimated_bytes=2 * 6_738_415_616,
        ),
    )  # fmt: skip


def test_a_plan_calibrates_if_the_format_requires_it() -> None:
    step, _ = plan("llama-3.1-8b", "1.0.0", quantization="int4_awq", calib_size=32)
    assert step.title == (
        "Calibrate and convert the checkpoint for TensorRT-LLM (int4_awq weights)"
    )
    assert step.command == (
        "/venv/bin/python", "/examples/quantization/quantize.py",
        "--model_dir", "/models/my model", "--output_dir", _SCRATCH,
        "--qformat", "int4_awq", "--calib_size", "32",
    )  # fmt: skip
    # 4.125 bits for each of the 7.0e9 layer parameters, 16 for the 1.05e9 of embedding and head.
    assert step.estimated_bytes == pytest.approx(5.7e9, rel=0.01)


@pytest.mark.parametrize(
    ("quantization", "kv_cache_dtype", "expected"),
    [
        (None, None, {}),
        (None, "auto", {}),
        (None, "int8", {"--int8_kv_cache": ""}),
        (None, "fp8", {"--qformat": "full_prec", "--kv_cache_dtype": "fp8"}),
        ("int8", None, {"--use_weight_only": "", "--weight_only_precision": "int8"}),
        ("int4", "fp8", {"--qformat": "int4_wo", "--kv_cache_dtype": "fp8"}),
        ("int8", "fp8", {"--qformat": "int8_wo", "--kv_cache_dtype": "fp8"}),
        ("fp8", "fp8", {"--qformat": "fp8", "--kv_cache_dtype": "fp8"}),
        ("int8_sq", "int8", {"--qformat": "int8_sq", "--kv_cache_dtype": "int8"}),
        ("w4a8_awq", None, {"--qformat": "w4a8_awq"}),
    ],
)
def test_formats_are_passed_as_flags_of_their_program(
    quantization: Quantization | None, kv_cache_dtype: KvCacheDtype | None, expected: dict[str, str]
) -> None:
    step, _ = plan("llama-2-7b", "0.16.0", quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    arguments = options_in(step.command)
    assert arguments == {"--model_dir": "/models/my model", "--output_dir": _SCRATCH, **expected}


@pytest.mark.parametrize(
    ("model", "version", "expected"),
    [
        ("llama-3.1-8b", "0.14.0", "bfloat16"),
        ("llama-3.1-8b", "0.15.0", None),
        ("llama-2-7b", "0.14.0", "float16"),
        ("gpt2-medium", "0.11.0", "float16"),
    ],
)
def test_auto_is_the_checkpoints_dtype_in_every_version(
    model: str, version: str, expected: str | None
) -> None:
    assert options_in(plan(model, version)[0].command).get("--dtype") == expected


def test_flag_names_of_the_converter_are_used() -> None:
    step, _ = plan("gemma-2-9b", "0.16.0", tp=2)
    assert step.command == (
        "/venv/bin/python", "/examples/gemma/convert_checkpoint.py", "--ckpt-type", "hf",
        "--model-dir", "/models/my model", "--output-model-dir", _SCRATCH, "--world-size", "2",
    )  # fmt: skip


def test_workers_are_passed_to_each_program_that_has_the_flag() -> None:
    commands = [step.command for step in plan("llama-2-7b", "0.16.0", tp=2, workers=2)]
    assert [command[-2:] for command in commands] == [("--workers", "2")] * 2
    commands = [step.command for step in plan("gemma-2-9b", "0.16.0", tp=2, workers=2)]
    assert ["--workers" in command for command in commands] == [False, True]


def test_switches_take_a_value_or_none_by_version() -> None:
    requested = {"paged_kv_cache": False, "context_fmha": False, "use_paged_context_fmha": False,
             "multiple_profiles": True, "gather_context_logits": True}  # fmt: skip
    old, new = (
        options_in(plan("llama-2-7b", each, **requested)[1].command)
        for each in ("0.12.0", "0.13.0")
    )
    same = {"--context_fmha": "disable", "--use_paged_context_fmha": "disable",
            "--multiple_profiles": "enable", "--gather_context_logits": ""}  # fmt: skip
    folders = {"--checkpoint_dir": _SCRATCH, "--output_dir": "{work}",
               "--output_timing_cache": f"{_SCRATCH}/model.cache"}  # fmt: skip
    assert old == {**folders, **same, "--paged_kv_cache": "disable"}
    assert new == {**folders, **same, "--kv_cache_type": "continuous"}


def test_timing_cache_is_in_the_scratch_folder_in_the_first_version() -> None:
    assert options_in(plan("llama-2-7b", "0.8.0")[1].command) == {
        "--checkpoint_dir": _SCRATCH,
        "--output_dir": "{work}",
        "--timing_cache": f"{_SCRATCH}/model.cache",
    }


def test_timing_cache_has_no_flag_in_pre_releases_of_the_version_that_renames_it() -> None:
    assert options_in(plan("llama-2-7b", "0.9.0.dev2024022700")[1].command) == {
        "--checkpoint_dir": _SCRATCH,
        "--output_dir": "{work}",
    }


def test_external_draft_tokens_have_no_mode_flag_in_0_9() -> None:
    requested = {"speculative_decoding_mode": "draft_tokens_external", "max_draft_len": 5}
    arguments = options_in(plan("llama-2-7b", "0.9.0", **requested)[1].command)
    assert arguments["--max_draft_len"] == "5"
    assert "--speculative_decoding_mode" not in arguments


def test_lora_plugin_has_the_dtype_of_the_model() -> None:
    requested = {"lora_dir": ("adapter",)}
    plugins = [
        options_in(plan("llama-3.1-8b", each, **requested)[1].command)["--lora_plugin"]
        for each in ("0.10.0", "0.11.0")
    ]
    assert plugins == ["bfloat16", "auto"]


def test_medusa_works_with_fp8() -> None:
    requested = {"speculative_decoding_mode": "medusa", "speculative_model": "heads",
             "quantization": "fp8", "max_draft_len": 31}  # fmt: skip
    step, _ = plan("llama-2-7b", "0.16.0", **requested)
    assert options_in(step.command) == {
        "--model_dir": "/models/my model",
        "--output_dir": _SCRATCH,
        "--qformat": "fp8",
        "--medusa_model_dir": "heads",
        "--max_draft_len": "31",
    }
    assert step.inputs == ("/models/my model", "heads")


@pytest.mark.parametrize(
    ("version", "options", "message"),
    [
        (
            "0.10.0",
            {"moe_tp": 2, "tp": 2},
            "TensorRT-LLM 0.10.0 does not support --moe-tp.\n"
            "Why: in this version, convert_checkpoint.py for llama does not have the "
            "--moe_tp_size flag\n"
            "Next: omit --moe-tp, or use TensorRT-LLM 0.11.0 or later",
        ),
        (
            "1.0.0",
            {"moe_ep": 2, "tp": 2, "quantization": "fp8"},
            "TensorRT-LLM 1.0.0 does not support --moe-ep.\n"
            "Why: in this version, quantize.py does not have the --moe_ep_size flag\n"
            "Next: omit --moe-ep",
        ),
        (
            "0.8.0",
            {"multiple_profiles": True},
            "TensorRT-LLM 0.8.0 does not support multiple_profiles.\n"
            "Why: in this version, trtllm-build does not have the --multiple_profiles flag\n"
            "Next: omit multiple_profiles, or use TensorRT-LLM 0.9.0 or later",
        ),
        (
            "0.10.0",
            {"gemm_plugin": "auto"},
            "TensorRT-LLM 0.10.0 does not support gemm_plugin auto.\n"
            "Why: in this version, trtllm-build accepts these values for --gemm_plugin: "
            "float16, float32, bfloat16, disable\n"
            "Next: set gemm_plugin to a valid value",
        ),
        (
            "0.16.0",
            {"kv_cache_dtype": "nvfp4"},
            "TensorRT-LLM 0.16.0 does not support --kv-cache-dtype nvfp4.\n"
            "Why: in this version, quantize.py accepts these values for --kv_cache_dtype: int8, "
            "fp8\n"
            "Next: set --kv-cache-dtype to a valid value",
        ),
        (
            "0.10.0",
            {"max_seq_len": 1024},
            "--max-seq-len 1024 leaves no room for output tokens.\n"
            "Why: TensorRT-LLM 0.10.0 reserves 1024 tokens for the input\n"
            "Next: set --max-input-len below 1024",
        ),
        (
            "0.16.0",
            {"calib_size": 32},
            "calib_size has no effect.\n"
            "Why: the checkpoint is converted without calibration\n"
            "Next: omit the option, or pass a quantization that requires calibration: "
            "--quantization fp8, int8_sq or int4_awq",
        ),
    ],
)
def test_options_that_a_version_lacks_are_refused(
    version: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput) as raised:
        plan("mixtral-8x22b", version, **options)
    assert str(raised.value) == message


def test_kv_cache_dtype_without_program_support_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        plan("opt-125m", "0.16.0", kv_cache_dtype="fp8")
    assert str(raised.value) == (
        "TensorRT-LLM 0.16.0 does not support --kv-cache-dtype fp8 for OPTForCausalLM.\n"
        "Why: neither the converter nor quantize.py supports this KV cache data type for these "
        "weights\n"
        "Next: omit --kv-cache-dtype"
    )


def test_quantization_none_equals_the_default() -> None:
    assert plan("llama-2-7b", "0.16.0", quantization="none") == plan("llama-2-7b", "0.16.0")


def test_eagle_with_calibration_is_refused() -> None:
    requested = {"speculative_decoding_mode": "eagle", "speculative_model": "heads",
             "quantization": "fp8"}  # fmt: skip
    with pytest.raises(BadInput) as raised:
        plan("llama-2-7b", "0.16.0", **requested)
    assert str(raised.value) == (
        "speculative_decoding_mode eagle does not support --quantization fp8 with "
        "--kv-cache-dtype auto.\n"
        "Why: these formats require quantize.py, which supports only Medusa heads\n"
        "Next: omit --quantization and --kv-cache-dtype"
    )


_PLUGINS = st.sampled_from(("auto", "float16", "bfloat16", "float32", "disable", "fp8", "nvfp4"))
_LENGTHS = st.sampled_from((0, 1, 64, 512, 1024, 2048, 4096, 131072))
_FLAGS = st.sampled_from(
    ("log_level", "logits_dtype", "smoothquant", "quant_ckpt_path", "kv_cache_type", "workers")
)
_FLAG_VALUES = st.sampled_from(("info", "float16", "0.5", "enable", "true", "paged"))
_DRAFTS = st.sampled_from((None, 5, 63, 300))


def _options(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(values)


# Few at a time, as users set them: many options together are almost always contradictory.
_OPTIONS = st.one_of(
    _options(tp=st.sampled_from((2, 3, 4, 8))),
    _options(pp=st.just(2)),
    _options(tp=st.just(4), moe_tp=st.sampled_from((None, 1, 2)), moe_ep=st.sampled_from((2, 4))),
    _options(dtype=st.sampled_from(get_args(Dtype))),
    _options(quantization=st.sampled_from(get_args(Quantization))),
    _options(kv_cache_dtype=st.sampled_from(get_args(KvCacheDtype))),
    _options(max_batch_size=_LENGTHS),
    _options(max_input_len=_LENGTHS),
    _options(max_seq_len=_LENGTHS),
    _options(max_num_tokens=_LENGTHS),
    _options(opt_num_tokens=_LENGTHS),
    _options(max_beam_width=st.sampled_from((1, 4))),
    _options(paged_kv_cache=st.booleans()),
    _options(tokens_per_block=st.sampled_from((32, 64))),
    _options(use_paged_context_fmha=st.booleans()),
    _options(remove_input_padding=st.booleans()),
    _options(context_fmha=st.booleans()),
    _options(gemm_plugin=_PLUGINS),
    _options(gpt_attention_plugin=_PLUGINS),
    _options(multiple_profiles=st.booleans()),
    _options(gather_context_logits=st.just(True)),
    _options(gather_generation_logits=st.just(True)),
    _options(lora_dir=st.sampled_from((("adapter",), ("one", "another")))),
    _options(
        lora_target_modules=st.sampled_from((("attn_q", "attn_v"), ("mlp_router",), ("other",))),
        max_lora_rank=st.sampled_from((None, 8)),
    ),
    _options(speculative_decoding_mode=st.sampled_from(get_args(SpeculativeMode)),
          speculative_model=st.just("heads"), max_draft_len=_DRAFTS),
    _options(speculative_decoding_mode=st.sampled_from(get_args(SpeculativeMode)),
          max_draft_len=_DRAFTS),
    _options(quantization=st.just("fp8"), calib_size=st.just(32), calib_dataset=st.just("mine")),
    _options(calib_size=st.just(32)),
    _options(workers=st.just(8)),
    _options(flags=st.dictionaries(_FLAGS, _FLAG_VALUES, max_size=2)),
)  # fmt: skip
_ANY_OPTIONS = st.lists(_OPTIONS, max_size=5).map(
    lambda groups: EngineOptions(
        **{name: value for group in groups for name, value in group.items()}
    )
)
_OTHER_VERSIONS = (
    "0.5.0", "0.6.1", "0.7.0", "0.7.1",
    "0.9.0.dev2024022700", "0.10.0.dev2024041600", "0.12.0.dev2024071600", "0.13.0.dev2024081300",
    "0.17.0.dev2024121700", "1.2.0rc6", "1.3.0rc21",
)  # fmt: skip
_ANY_VERSION = st.sampled_from([*map(str, VERSIONS), *_OTHER_VERSIONS])


@settings(max_examples=5 * settings().max_examples)
@given(model=st.sampled_from(sorted(MODELS)), version=_ANY_VERSION, options=_ANY_OPTIONS)
def test_every_plan_is_refused_or_accepted_by_its_programs(
    model: str, version: str, options: EngineOptions
) -> None:
    try:
        steps = plan(model, version, **asdict(options))
    except BadInput as error:
        assert error.what and error.why and error.next_step
        return
    for step in steps:
        check_step(step, Version(version))


def test_examples_include_each_option_and_version() -> None:
    drawn, default = draw_examples(_ANY_OPTIONS, factor=5), EngineOptions()
    unchanged = {
        each.name
        for each in fields(EngineOptions)
        if all(getattr(options, each.name) == getattr(default, each.name) for options in drawn)
    }
    assert unchanged == set()
    versions = set(draw_examples(_ANY_VERSION, factor=5))
    assert versions == {*map(str, VERSIONS), *_OTHER_VERSIONS}


@pytest.mark.parametrize("version", [str(each) for each in VERSIONS])
def test_basic_options_are_planned_in_every_version(version: str) -> None:
    for step in plan("llama-2-7b", version, tp=2, max_batch_size=8, max_seq_len=2048):
        check_step(step, version)
