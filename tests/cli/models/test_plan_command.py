"""Tests of the command `tllm plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Tllm
from tests.samples import configs
from tests.samples.repositories import add_model
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sizing.gpus import PresentGpu

GOLDEN = Path(__file__).parent / "plans"


@pytest.fixture
def tllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tllm:
    """Run `tllm` without a GPU, in a folder with a checkpoint without weights."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    _write(configs.LLAMA_3_1_8B)
    return Tllm(monkeypatch, capsys)


def _write(config: dict[str, Any]) -> None:
    Path("m").mkdir(exist_ok=True)
    Path("m/config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("name", "config", "options"),
    [
        ("llama-3.1-8b-h200", configs.LLAMA_3_1_8B, "--gpu h200 --num-gpus 2"),
        ("llama-2-70b-a100-tp4-pp2", configs.LLAMA_2_70B, "--gpu a100 --tp 4 --pp 2"),
        ("mixtral-8x22b-h100-ep4", configs.MIXTRAL_8X22B,
         "--gpu h100 --tp 8 --moe-tp 2 --moe-ep 4"),
        ("deepseek-v3-h200", configs.DEEPSEEK_V3,
         "--gpu h200 --tp 8 --moe-ep 8 --kv-cache-dtype fp8 --input-len 4096 --output-len 1024"),
        ("gpt2-medium-t4-tp4", configs.GPT_2_MEDIUM, "--gpu t4 --tp 4"),
    ],
)  # fmt: skip
def test_plans_are_the_golden_ones(
    tllm: Tllm, name: str, config: dict[str, Any], options: str
) -> None:
    _write(config)
    code, out, err = tllm("plan", "-s", "local:m", *options.split(), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((GOLDEN / f"{name}.json").read_text())


def test_output_fits_80_columns(tllm: Tllm) -> None:
    code, out, _ = tllm("plan", "-s", "local:m", "--gpu", "h200", "--num-gpus", "2")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.splitlines()[:4] == [
        "local:m (LlamaForCausalLM)",
        "  8.03 billion parameters; bfloat16",
        "  131,072 bytes of KV cache per token (bfloat16)",
        "h200: 140.4 GiB, 4.8 TB/s, 989 TFLOP/s; 1024 prompt tokens, 256 response tokens",
    ]
    assert [line.split() for line in out.splitlines() if line.startswith(("1 ", "2 "))] == [
        ["1", "1", "1", "15.0", "109.7", "702", "284", "7,998"],
        ["2", "2", "1", "8.0", "116.3", "1,488", "567", "16,338"],
        ["2", "1", "2", "7.5", "116.0", "1,484", "284", "15,987"],
    ]
    assert "Minimum number of GPUs: 1 (--tp 1 --pp 1)" in out


def test_long_description_of_a_model_fits_80_columns(tllm: Tllm) -> None:
    _write(configs.DEEPSEEK_V3)
    index = {"metadata": {"total_size": 688_586_727_753}, "weight_map": {"w": "w.safetensors"}}
    Path("m/model.safetensors.index.json").write_text(json.dumps(index))
    out = tllm("plan", "-s", "local:m", "--gpu", "h200")[1]
    assert out.splitlines()[1:3] == [
        "  671.03 billion parameters, 37.55 billion active; bfloat16, weights fp8; 688.6",
        "  GB on disk",
    ]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ("h200", "1,024 sequences and 16,384 tokens per step"),
        ("l4", "256 sequences and 2,048 tokens per step (pytorch and tensorrt: 8,192)"),
    ],
)
def test_default_limits_of_engines_are_printed(tllm: Tllm, gpu: str, limits: str) -> None:
    out = tllm("plan", "-s", "local:m", "--gpu", gpu)[1]
    assert f"Default limits on this number of GPUs: {limits} Upper" in " ".join(out.split())


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    host = CpuHost(1 << 34, num_threads=4)
    monkeypatch.setattr("trtllm_serve_cli.engine_kinds.cpu_memory.find_host", lambda: host)


@pytest.mark.usefixtures("cpu")
def test_machine_without_a_gpu_has_limits_on_its_cpu(tllm: Tllm) -> None:
    code, out, err = tllm("plan", "-s", "local:m")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert out.splitlines()[:4] == [
        "local:m (LlamaForCausalLM)",
        "  8.2 GiB of weights (int8)",
        "  75,776 bytes of KV cache per token",
        "This machine: 16.0 GiB of memory, 4 CPU threads",
    ]
    limits = (
        "Limits of the engine kind openvino: 64 sequences, 256 tokens per step, 47,968 tokens in "
        "the KV cache, 47,968 tokens per sequence, 4 threads"
    )
    assert limits in " ".join(out.split())


@pytest.mark.usefixtures("cpu")
def test_plan_for_a_cpu_as_json(tllm: Tllm) -> None:
    _, out, _ = tllm("plan", "-s", "local:m", "--max-seq-len", "4096", "--json")
    assert json.loads(out) == {
        "source": "local:m",
        "architecture": "LlamaForCausalLM",
        "engine_kind": "openvino",
        "weights": "int8",
        "weight_bytes": 8_833_287_372,
        "kv_bytes_per_token": 75_776,
        "memory_bytes": 1 << 34,
        "required_bytes": 8_833_287_372 + (1 << 30) + 2048 * 75_776,
        "num_threads": 4,
        "limits": {
            "max_num_seqs": 64, "max_num_tokens": 256, "max_seq_len": 4096,
            "max_tokens_in_paged_kv_cache": 32_768,
        },
    }  # fmt: skip


@pytest.mark.usefixtures("cpu")
def test_model_that_does_not_fit_into_the_memory(tllm: Tllm) -> None:
    _write(configs.LLAMA_2_70B)
    out = tllm("plan", "-s", "local:m")[1]
    assert "The model does not fit. It requires at least 72.0 GiB of memory." in out


@pytest.mark.usefixtures("cpu")
def test_imported_engine_for_cpus_is_planned_for_the_cpu(
    tllm: Tllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = PresentGpu(0, "NVIDIA H200", 143_771)
    monkeypatch.setattr("trtllm_serve_cli.sizing.gpus.find_gpus", lambda: (gpu,))
    engine = add_model(find_home(), "mine").engine_path
    cache = 'variable_id="0" variable_type="f32" variable_shape="?,4,?,64"'
    (engine / "openvino_model.xml").write_text(f"<data {cache} />")
    (engine / "openvino_model.bin").write_bytes(bytes(1000))
    out = tllm("plan", "mine")[1]
    assert out.startswith(
        "gguf:/models/mine.gguf (llama)\n  1000 bytes of weights (as in the GGUF)\n"
    )
    assert "32,768 tokens in the KV cache" in " ".join(out.split())
    assert "one stream" in tllm("plan", "-s", "local:m")[1]


@pytest.mark.usefixtures("cpu")
def test_quantization_of_an_imported_model_for_cpus_is_planned(tllm: Tllm) -> None:
    manifest = add_model(find_home(), "mine").path / "tllm.json"
    values = json.loads(manifest.read_text())
    values["engine"]["source"] = f"local:{Path('m').absolute()}"
    manifest.write_text(json.dumps(values))
    assert "GiB of weights (int4)" in tllm("plan", "mine", "--quantization", "int4")[1]
    code, _, err = tllm("plan", "mine", "--quantization", "fp8")
    assert (code, "fp8" in err) == (3, True)


def test_imported_model_is_found_by_its_name(tllm: Tllm) -> None:
    add_model(find_home(), "mine")
    code, _, err = tllm("plan", "-m", "mine", "--gpu", "h200")
    assert (code, "/models/mine.gguf cannot be read." in err) == (3, True)


def test_model_that_does_not_fit(tllm: Tllm) -> None:
    _write(configs.LLAMA_3_1_405B)
    code, out, _ = tllm("plan", "-s", "local:m", "--gpu", "h100", "--tp", "8")
    assert code == 0
    assert "too large" in out
    assert "The model requires 16 GPUs (--tp 8 --pp 2), but the maximum is 8." in out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("-s local:m --gpu h2000", "'h2000' is not a supported GPU."),
        ("-s local:m --num-gpus 2", "No NVIDIA GPU was found on this machine."),
        ("-s local:m --tp 2", "No NVIDIA GPU was found on this machine."),
        ("-s local:m --quantization fp8", "The openvino engine kind does not support"),
        ("--gpu h200", "No model was specified."),
        (f"-m {'x' * 300} -s local:m --gpu h200", "is not a valid model name."),
        ("-m no-such --gpu h200", "The model 'no-such' is unknown."),
        (f"-m {'x' * 300} --gpu h200", "is not a valid model name."),
        ("-s engine:e --gpu h200", "is an engine, but `tllm plan` supports only checkpoints."),
        ("-s local:m --gpu h200 --revision main", "local:m does not support revisions."),
        ("-s local:m --gpu h200 --tp 3", "The model cannot run with --tp 3."),
        (
            "-s local:m --gpu h200 --num-gpus 2 --tp 4",
            "The options request 4 GPUs, but the maximum is 2.",
        ),
        (
            "-s local:m --gpu a100 --quantization fp8",
            "The a100-80gb GPU does not support fp8 weights.",
        ),
    ],
)
def test_impossible_plans_exit_with_3(tllm: Tllm, arguments: str, what: str) -> None:
    code, out, err = tllm("plan", *arguments.split())
    assert (code, out) == (3, "")
    assert what in err


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("big", ""),
        (
            "llama-3.1-8b",
            "The plan is for local:m, not for the source of llama-3.1-8b, which is hf:",
        ),
        ("mine", "The plan is for local:m, not for the source of mine, which is hf:org/model"),
        ("same", ""),
    ],
)
def test_source_takes_precedence_over_the_name(tllm: Tllm, name: str, note: str) -> None:
    for model, source in (("mine", "hf:org/model"), ("same", f"local:{Path('m').absolute()}")):
        manifest = add_model(find_home(), model).path / "tllm.json"
        values = json.loads(manifest.read_text())
        values["engine"]["source"] = source
        manifest.write_text(json.dumps(values))
    alone = tllm("plan", "-s", "local:m", "--gpu", "h200")[1]
    code, out, err = tllm("plan", "-m", name, "-s", "local:m", "--gpu", "h200")
    assert (code, out) == (0, alone)
    assert note in " ".join(err.split()) if note else not err


def test_input_length_of_zero_is_wrong_usage(tllm: Tllm) -> None:
    assert tllm("plan", "-s", "local:m", "--gpu", "h200", "--input-len", "0")[0] == 2
