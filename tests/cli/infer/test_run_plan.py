"""The plan of `tllm run`."""

from __future__ import annotations

import dataclasses

import pytest

from trtllm_serve_cli.cli.infer.run_plan import RunPlan, list_words
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.option_fields import option_fields

NEW = RunPlan("demo", "What is ML?", imports=True, starts=True)


@pytest.mark.parametrize(
    ("plan", "commands"),
    [
        (NEW, ["tllm import -m demo", "tllm start -m demo", "tllm infer -m demo 'What is ML?'"]),
        (
            dataclasses.replace(NEW, imports=False, start_options=("--http-port", "8100")),
            ["tllm start -m demo --http-port 8100", "tllm infer -m demo 'What is ML?'"],
        ),
        (
            dataclasses.replace(NEW, imports=False, starts=False, prompt=None),
            ["tllm infer -m demo PROMPT"],
        ),
    ],
    ids=["new", "imported", "running, no prompt"],
)
def test_plan_is_the_commands_that_are_still_needed(plan: RunPlan, commands: list[str]) -> None:
    assert plan.describe().splitlines() == commands


def test_options_become_words_of_a_command_line() -> None:
    fields = option_fields(GenerateRequest, "max_tokens", "temperature", "seed")
    assert list_words(fields, {"seed": 0, "max_tokens": 5}) == ["--max-tokens", "5", "--seed", "0"]
