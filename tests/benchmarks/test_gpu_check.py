"""The prompts of the GPU check, and its samples of the GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_check import (
    FULL,
    SHORT,
    Check,
    change_early_token,
    draw_burst,
    draw_warmup,
    greedy_prompts,
    prompt_of,
)
from gpu_clocks import parse_samples, summarize
from gpu_gateway import check_engines

# First tokens of a prompt that are commands of the tests' stand-in for vLLM, which --rehearse uses
# (tests/fakes/stand_in/vllm/v1/engine/core_client.py).
COMMANDS = {991, 992, 993, 994}


def check(folder: Path, *, is_rehearsal: bool) -> Check:
    return Check(folder, "python3", SHORT if is_rehearsal else FULL, is_rehearsal, None, {}, {})


@pytest.mark.parametrize(
    "draw",
    [
        lambda check: draw_burst(check)[0],
        draw_warmup,
        greedy_prompts,
        lambda check: [prompt_of(check, 200)],
    ],
    ids=["burst", "warmup", "greedy", "alone"],
)
def test_no_prompt_of_a_rehearsal_is_a_command(
    tmp_path: Path, draw: Callable[[Check], list[list[int]]]
) -> None:
    prompts = draw(check(tmp_path, is_rehearsal=True))
    assert not {prompt[0] for prompt in prompts} & COMMANDS


def test_warm_up_does_not_cache_a_measured_prompt(tmp_path: Path) -> None:
    run = check(tmp_path, is_rehearsal=False)
    measured = {tuple(prompt[:16]) for prompt in draw_burst(run)[0]}
    assert not {tuple(prompt[:16]) for prompt in draw_warmup(run)} & measured


def test_an_early_token_of_each_prompt_changes(tmp_path: Path) -> None:
    prompts = greedy_prompts(check(tmp_path, is_rehearsal=False))
    for before, after in zip(prompts, change_early_token(prompts), strict=True):
        assert [at for at, token in enumerate(before) if after[at] != token] == [5]


def test_engines_are_not_measured_without_their_gpus(tmp_path: Path) -> None:
    run = replace(check(tmp_path, is_rehearsal=False), engine_gpus="0;99")
    assert "need GPUs 0, 99" in check_engines(run)["left_out"]
    assert not list(tmp_path.iterdir())


def test_clocks_are_those_of_busy_gpus() -> None:
    table = "1980, 690.5, 61, 100\n345, 75.0, 30, 0\n[N/A], 1, 2, 3\n"
    samples = parse_samples(table) + parse_samples("1500, 650.5, 65, 95")
    assert summarize(samples) == {
        "num_samples": 3,
        "num_busy": 2,
        "sm_clock_mhz": {"min": 1500, "p50": 1740, "max": 1980},
        "power_w": {"min": 650.5, "p50": 670.5, "max": 690.5},
        "temperature_c": {"min": 61, "p50": 63, "max": 65},
    }
    assert summarize([]) == {"num_samples": 0, "num_busy": 0}
