"""Engines, checkpoints and build plans."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.build_step import BuildStep
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.runtime.engines.sim.timing import SchedulerLimits, Simulation, StepTiming
from trtllm_serve_cli.sources.checkpoint import Checkpoint

ENGINE = Engine(
    path=Path("/engines/mine"),
    kind="openvino",
    model_name="mine",
    source="gguf:/models/mine.gguf",
    fingerprint="f1",
    architecture="llama",
    weights="as in the GGUF",
    vocab_size=49152,
    max_position_embeddings=8192,
    chat_template='{% for m in messages %}"{{ m.content }}"\n\\{% endfor %}é',
    bos_token="<|im_start|>",
    eos_token="<|im_end|>",
    adds_bos=False,
)
SIM_LIMITS = SchedulerLimits(
    max_batch_size=32, max_num_tokens=512, max_tokens_in_paged_kv_cache=4096,
    batch_scheduler_policy="max_utilization", enable_chunked_context=True,
)  # fmt: skip
SIM = dataclasses.replace(ENGINE, kind="sim", details=Simulation(StepTiming(0.02), SIM_LIMITS))
GGUF = Checkpoint(
    Path("/models/mine.gguf"), "gguf", "gguf:/models/mine.gguf", None, "llama", 1_000_000
)
HF = Checkpoint(Path("/models/hf"), "hf", "local:/models/hf", None, "LlamaForCausalLM", 1_000_000)


def write_engine_step(engine: Engine) -> BuildStep:
    """Return a command that writes the engine's engine.json, as the last step of a build does."""
    facts = {**dataclasses.asdict(engine), "path": ""}
    code = (
        "import sys; from pathlib import Path; from trtllm_serve_cli.build.engine import *\n"
        f"write_engine(Engine(**{facts!r}), Path(sys.argv[1]))"
    )
    return BuildStep("Describe the engine", python(code))


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, "{work}")


def build_plan(engine_dir: Path, *steps: BuildStep, **changes: Any) -> BuildPlan:
    """Return a plan with these steps, or with a single step that writes an engine."""
    plan = BuildPlan(
        model_name="mine",
        kind="openvino",
        weights="as in the GGUF",
        checkpoint=GGUF,
        engine_dir=engine_dir,
        steps=steps or (write_engine_step(ENGINE),),
        fingerprint=ENGINE.fingerprint,
        estimated_bytes=1000,
    )
    return dataclasses.replace(plan, **changes)
