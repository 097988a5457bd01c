"""Flags of each program by version, and checks of command lines."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests.build.tensorrt.programs import ParseError, parse_arguments
from tests.build.tensorrt.samples import VERSIONS
from trtllm_serve_cli.build.tensorrt.flags import Flag, flags_of
from trtllm_serve_cli.build.tensorrt.versions import load_table

FAMILIES = sorted(
    {
        family
        for rows in load_table("flags_converters.yaml").values()
        for row in rows
        for family in row["in"]
    }
)
PROGRAMS = ["trtllm-build", "quantize.py", *(f"{each}/convert_checkpoint.py" for each in FAMILIES)]


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.8.0", {"--paged_kv_cache", "--max_output_len", "--timing_cache"}),
        ("0.10.0", {"--paged_kv_cache", "--max_output_len", "--speculative_decoding_mode"}),
        (
            "0.11.0",
            {
                "--paged_kv_cache",
                "--max_output_len",
                "--max_seq_len",
                "--speculative_decoding_mode",
            },
        ),
        ("0.12.0", {"--paged_kv_cache", "--max_seq_len", "--speculative_decoding_mode"}),
        (
            "0.13.0",
            {"--paged_kv_cache", "--kv_cache_type", "--max_seq_len", "--speculative_decoding_mode"},
        ),
    ],
)
def test_flags_of_trtllm_build_by_version(version: str, flags: set[str]) -> None:
    queried = {
        "--paged_kv_cache", "--kv_cache_type", "--max_output_len", "--max_seq_len",
        "--timing_cache", "--speculative_decoding_mode",
    }  # fmt: skip
    assert queried & set(flags_of("trtllm-build", Version(version))) == flags


def test_default_and_choices_of_a_flag_by_version() -> None:
    versions = [Version(text) for text in ("0.10.0", "0.11.0", "0.16.0", "1.0.0", "1.2.0")]
    assert [flags_of("trtllm-build", each)["--gemm_plugin"] for each in versions] == [
        Flag("--gemm_plugin", choices=("float16", "float32", "bfloat16", "disable")),
        Flag(
            "--gemm_plugin",
            choices=("auto", "float16", "float32", "bfloat16", "int32", "fp8", "disable"),
            default="disable",
        ),
        Flag(
            "--gemm_plugin",
            choices=("auto", "float16", "float32", "bfloat16", "int32", "fp8", "disable"),
            default="disable",
        ),
        Flag(
            "--gemm_plugin",
            choices=("auto", "float16", "float32", "bfloat16", "int32", "fp8", "disable"),
        ),
        Flag(
            "--gemm_plugin",
            choices=("auto", "float16", "float32", "bfloat16", "int32", "fp8", "nvfp4", "disable"),
        ),
    ]


def test_pre_release_has_the_flags_that_both_neighbouring_releases_have() -> None:
    flags = flags_of("trtllm-build", Version("0.13.0.dev2024081300"))
    assert "--max_seq_len" in flags
    assert "--kv_cache_type" not in flags
    assert "--use_custom_all_reduce" not in flags_of(
        "trtllm-build", Version("0.12.0.dev2024072300")
    )
    qformat = flags_of("quantize.py", Version("0.17.0.dev2024121700"))["--qformat"]
    assert "nvfp4" not in qformat.choices


def test_pre_release_lacks_flags_that_change_their_type() -> None:
    flags = [
        flags_of("trtllm-build", Version(text)).get("--use_fused_mlp")
        for text in ("0.12.0", "0.13.0.dev2024081300", "0.13.0")
    ]
    assert flags == [
        Flag("--use_fused_mlp", type="flag"),
        None,
        Flag("--use_fused_mlp", choices=("enable", "disable"), default="enable"),
    ]


def test_pre_release_lacks_flags_without_a_common_value(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = ["enable", "disable"], ["on", "off"]
    rows = [{"before": "9.0", "choices": old}, {"since": "9.0", "choices": new}]
    table = {"program": {"--mode": rows, "--name": {"choices": old}}}
    monkeypatch.setattr("trtllm_serve_cli.build.tensorrt.flags._load", lambda: table)
    assert flags_of("program", Version("9.0.dev0")) == {
        "--name": Flag("--name", choices=("enable", "disable"))
    }


LEGACY_PROGRAMS = ["llama/build.py", "gpt/build.py", "gpt/hf_gpt_convert.py"]
LEGACY_VERSIONS = [Version(text) for text in ("0.5.0", "0.6.1", "0.7.0", "0.7.1")]


@pytest.mark.parametrize(
    ("program", "versions"),
    [
        *((program, VERSIONS) for program in PROGRAMS),
        *((program, LEGACY_VERSIONS) for program in LEGACY_PROGRAMS),
    ],
)
def test_every_row_is_parsed_in_every_version(program: str, versions: list[Version]) -> None:
    for version in versions:
        flags = flags_of(program, version).values()
        arguments = [
            word for flag in flags if flag.required for word in (flag.name, str(_value(flag)))
        ]
        assert parse_arguments(program, version, arguments).keys() == {
            flag.name.removeprefix("--").replace("-", "_") for flag in flags
        }


def test_arguments_are_parsed_as_by_the_program() -> None:
    arguments = ("--max_batch_size", "8", "--lora_target_modules", "attn_q", "attn_k",
                 "--gather_context_logits", "--max_seq_len", "562")  # fmt: skip
    read = parse_arguments("trtllm-build", Version("0.16.0"), arguments)
    chosen = "max_batch_size", "lora_target_modules", "gather_context_logits", "max_seq_len"
    assert [read[name] for name in chosen] == [8, ["attn_q", "attn_k"], True, 562]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--kv_cache_type", "paged"), "unrecognized arguments: --kv_cache_type paged"),
        (("--max_batch", "8"), "unrecognized arguments: --max_batch 8"),
        (("--max_batch_size", "many"), "argument --max_batch_size: invalid int value: 'many'"),
        (("--workers",), "argument --workers: expected one argument"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse_arguments("trtllm-build", Version("0.11.0"), arguments)
    assert str(raised.value) == why


def _value(flag: Flag) -> str | int:
    return flag.choices[0] if flag.choices else "1"
