"""Options that are passed to Triton, and those that tllm reserves."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.triton.passthrough_args import drop_overridden, find_names, split_names


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], set()),
        (["--http-thread-count=16"], {"http-thread-count"}),
        (["--http-thread-count", "16"], {"http-thread-count"}),
        (["--model-load-retry-count", "-1"], {"model-load-retry-count"}),
        (["--disable-auto-complete-config", "--log-info=no"],
         {"disable-auto-complete-config", "log-info"}),
        (["--rate-limit-resource=a:1", "--rate-limit-resource=b:2"], {"rate-limit-resource"}),
    ],
)  # fmt: skip
def test_find_names_of_options(words: list[str], names: set[str]) -> None:
    assert find_names(words) == names


@pytest.mark.parametrize(
    "words",
    [["demo"], ["--log-info=no", "demo"], ["-m"], ["--log-info", "no", "no"], ["--"], [""]],
    ids=" ".join,
)
def test_word_that_is_not_an_option_is_rejected(words: list[str]) -> None:
    with pytest.raises(BadInput, match=r"is not a Triton option") as raised:
        find_names(words)
    assert "`tllm start NAME -- --http-thread-count=16`" in raised.value.next_step


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("--model-repository=/m", "-m NAME or --repo DIR"),
        ("--http-port=1", "--http-port N"),
        ("--metrics-address=::", "--host ADDRESS"),
        ("--exit-timeout-secs=5", "`tllm stop --timeout N`"),
        # Triton accepts prefixes of option names.
        ("--model-contr=poll", "--model-control-mode explicit"),
        ("--grpc-p", "--grpc-port N"),
    ],
)
def test_reserved_option_is_rejected(word: str, instead: str) -> None:
    with pytest.raises(BadInput, match="cannot be passed to Triton") as raised:
        find_names([word])
    assert raised.value.why
    assert raised.value.next_step == f"use {instead} instead"


def test_passthrough_options_replace_flags_unless_repeatable() -> None:
    flags = {"log-verbose": "0", "backend-config": "python,a=1", "grpc-keepalive-time": "1"}
    assert drop_overridden(flags, frozenset(("log-verbose", "backend-config"))) == {
        "backend-config": "python,a=1",
        "grpc-keepalive-time": "1",
    }


def test_names_of_models_precede_the_options() -> None:
    assert split_names(("a", "b", "--log-verbose", "1")) == (("a", "b"), ("--log-verbose", "1"))
    assert split_names(()) == ((), ())
