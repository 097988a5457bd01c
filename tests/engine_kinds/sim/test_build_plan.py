"""Simulated engines: planned for a GPU or a timing, and built from a small checkpoint."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.samples import configs
from tests.samples.builds import GGUF, HF
from tests.samples.checkpoints import write_files
from tests.samples.embedding_models import embedding_files
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.build_plan import BuildPlan, BuildRequest, Toolchain
from trtllm_serve_cli.build.engine import read_engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.run import build_engine
from trtllm_serve_cli.engine_kinds.dispatch import load_engine, plan_build
from trtllm_serve_cli.errors import BadInput, BuildFailed, MissingPart
from trtllm_serve_cli.runtime.engines.sim.timing import Simulation, StepTiming
from trtllm_serve_cli.sizing.gpus import load_gpu
from trtllm_serve_cli.sources.checkpoint import Checkpoint

TOOLS = Toolchain(sys.executable, versions={"transformers": "5", "openvino-genai": "2026"})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return a checkpoint without weights."""
    folder = write_tokenizer(tmp_path / "hf")
    (folder / "config.json").write_text(json.dumps(configs.LLAMA_3_1_8B))
    return dataclasses.replace(HF, path=folder)


@pytest.fixture
def timing(tmp_path: Path) -> Path:
    path = tmp_path / "timing.json"
    path.write_text('{"timing": {"step_s": 0.02}}')
    return path


def plan(
    checkpoint: Checkpoint, engine_dir: Path, *, tools: Toolchain = TOOLS,
    gpu: str | None = None, timing: Path | None = None, **options: Any,
) -> BuildPlan:  # fmt: skip
    request = BuildRequest(
        "mine", checkpoint, engine_dir, kind="sim", options=EngineOptions(**options),
        gpu=gpu, timing=timing,
    )  # fmt: skip
    return plan_build(request, tools)


def simulation_of(plan: BuildPlan) -> dict[str, Any]:
    return dict(plan.facts["simulation"])


def test_gpu_determines_timing_and_kv_cache(checkpoint: Checkpoint, tmp_path: Path) -> None:
    found = simulation_of(plan(checkpoint, tmp_path / "e", gpu="h200"))
    # 15 GB of weights in bfloat16 and half of a response's KV cache, at 4.3 TB/s.
    assert found["timing"]["step_s"] == pytest.approx(15.0e9 / 4.3e12, rel=0.01)
    # 131072 bytes per token, in 0.9 of the memory that 16 GB of weights leave free of 151 GB.
    assert found["timing"]["kv_token_s"] == pytest.approx(131072 / 4.3e12, rel=0.01)
    assert found["timing"]["prompt_token_s"] == pytest.approx(2 * 7.5e9 / 670e12, rel=0.1)
    assert found["limits"]["max_tokens_in_paged_kv_cache"] == pytest.approx(0.905e6, rel=0.01)
    assert found["origin"] == (
        "ceilings of 1 x h200 for local:/models/hf (bfloat16, weights none, KV cache bfloat16)"
    )


def test_two_gpus_halve_the_step_time(checkpoint: Checkpoint, tmp_path: Path) -> None:
    one, two = (
        simulation_of(plan(checkpoint, tmp_path / "e", gpu="h200", tp=tp))["timing"]
        for tp in (1, 2)
    )
    assert two["step_s"] == pytest.approx(one["step_s"] / 2, rel=0.01)
    assert two["prompt_token_s"] == pytest.approx(one["prompt_token_s"] / 2, rel=0.01)


def test_default_gpu_is_that_of_this_machine(checkpoint: Checkpoint, tmp_path: Path) -> None:
    here = dataclasses.replace(TOOLS, gpu=load_gpu("l4"))
    assert "1 x l4" in simulation_of(plan(checkpoint, tmp_path / "e", tools=here))["origin"]


def test_embedding_models_need_a_timing_or_a_known_family(tmp_path: Path, timing: Path) -> None:
    write_files(tmp_path / "hf", embedding_files())
    write_tokenizer(tmp_path / "hf")
    bert = dataclasses.replace(HF, path=tmp_path / "hf", architecture="BertModel")
    with pytest.raises(BadInput, match="type 'bert' cannot be estimated") as refused:
        plan(bert, tmp_path / "e", gpu="h200")
    assert "--timing FILE" in refused.value.next_step
    planned = plan(bert, tmp_path / "e", timing=timing)
    built = build_engine(planned, force=False, notify=lambda text: None)
    engine = load_engine(built.path)
    assert engine.embedding is not None
    assert (engine.embedding.dimension, engine.max_position_embeddings) == (8, 32)
    write_files(tmp_path / "hf", embedding_files(**configs.LLAMA_3_1_8B))
    assert plan(bert, tmp_path / "e", gpu="h200").facts["embedding"]["pooling"] == "mean"


def test_timing_file_is_used_unchanged(
    checkpoint: Checkpoint, timing: Path, tmp_path: Path
) -> None:
    found = plan(checkpoint, tmp_path / "e", timing=timing)
    assert simulation_of(found) == Simulation(StepTiming(0.02)).to_json()


def test_fingerprint_depends_on_the_timing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    plans = [plan(checkpoint, tmp_path / "e", gpu=gpu) for gpu in ("h200", "h100", "h200")]
    assert plans[0].fingerprint == plans[2].fingerprint != plans[1].fingerprint


def test_builds_from_a_checkpoint_without_weights(
    checkpoint: Checkpoint, timing: Path, tmp_path: Path
) -> None:
    planned = plan(checkpoint, tmp_path / "engine", timing=timing)
    engine = build_engine(planned, force=False, notify=print)
    assert (engine.kind, engine.vocab_size, engine.eos_token) == ("sim", 128256, "</s>")
    assert load_engine(engine.path).details == Simulation(StepTiming(0.02))
    assert (engine.path / "tokenizer.json").exists()
    assert read_engine(tmp_path / "engine") == engine


def test_rejects_an_engine_with_a_broken_timing(
    checkpoint: Checkpoint, timing: Path, tmp_path: Path
) -> None:
    engine = build_engine(
        plan(checkpoint, tmp_path / "engine", timing=timing), force=False, notify=print
    )
    (engine.path / "simulation.json").write_text("{}")
    with pytest.raises(BuildFailed, match="does not contain a valid engine"):
        load_engine(engine.path)


def test_converts_only_the_tokenizer_of_a_gguf_file(timing: Path, tmp_path: Path) -> None:
    convert, _ = plan(GGUF, tmp_path / "e", timing=timing).steps
    assert convert.command[1:] == (
        "-m", "trtllm_serve_cli.engine_kinds.openvino.gguf_step", str(GGUF.path), "{work}",
        "--tokenizer-only",
    )  # fmt: skip


def test_requires_a_gpu_or_a_timing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        plan(checkpoint, tmp_path / "e")
    assert str(refused.value) == (
        "The GPU to simulate is unknown.\n"
        "Why: --gpu is not set, and this machine does not have a GPU that tllm supports\n"
        "Next: set a GPU, for example --gpu h200, or pass a timing file with --timing FILE"
    )


def test_rejects_a_model_that_does_not_fit(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not fit on 1 x t4") as refused:
        plan(checkpoint, tmp_path / "e", gpu="t4")
    assert "tllm plan -s local:/models/hf --gpu t4" in refused.value.next_step


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "No such file"), ("{", "Expecting"), ('{"timing": {}}', "step_s is missing or 0")],
)
def test_rejects_an_invalid_timing_file(
    checkpoint: Checkpoint, tmp_path: Path, text: str | None, why: str
) -> None:
    path = tmp_path / "none.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=r"The timing file .* cannot be read") as refused:
        plan(checkpoint, tmp_path / "e", timing=path)
    assert why in refused.value.why


def test_rejects_a_gpu_together_with_a_timing(
    checkpoint: Checkpoint, timing: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="--gpu and --timing cannot be combined"):
        plan(checkpoint, tmp_path / "e", gpu="h200", timing=timing)


def test_rejects_beams_and_tp_together_with_a_timing(
    checkpoint: Checkpoint, timing: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="sim does not support --max-beam-width"):
        plan(checkpoint, tmp_path / "e", gpu="h200", max_beam_width=2)
    with pytest.raises(BadInput, match="sim with --timing does not support --tp"):
        plan(checkpoint, tmp_path / "e", timing=timing, tp=2)


@pytest.mark.parametrize(
    ("checkpoint", "package"), [(HF, "transformers"), (GGUF, "openvino-genai")]
)
def test_requires_the_package_that_loads_the_tokenizer(
    checkpoint: Checkpoint, package: str, tmp_path: Path
) -> None:
    with pytest.raises(MissingPart) as missing:
        plan(checkpoint, tmp_path / "e", gpu="h200", tools=Toolchain("python3"))
    assert missing.value.next_step == f"run `pip install {package}`"
