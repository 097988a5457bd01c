"""Check the Triton options that follow `--` on the command line of `tllm start`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.triton.triton_command import Flags

_PORT = "tllm must know the port to check that it is free and to send requests"
_HOST = "tllm must know the server's address"
# Triton options that users cannot pass, each with the reason and the replacement.
_RESERVED: Mapping[str, tuple[str, str]] = {
    "model-repository": ("the models determine the repository", "-m NAME or --repo DIR"),
    "model-store": ("the models determine the repository", "-m NAME or --repo DIR"),
    "model-control-mode": (
        "tllm must know whether models can be unloaded", "--model-control-mode explicit",
    ),
    "load-model": ("tllm waits until these models have responded", "--load-model NAME"),
    "http-port": (_PORT, "--http-port N"),
    "grpc-port": (_PORT, "--grpc-port N"),
    "metrics-port": (_PORT, "--metrics-port N"),
    "http-address": (_HOST, "--host ADDRESS"),
    "grpc-address": (_HOST, "--host ADDRESS"),
    "metrics-address": (_HOST, "--host ADDRESS"),
    "allow-http": ("tllm checks over HTTP whether the server is ready", "--host 127.0.0.1"),
    "allow-metrics": (
        "`tllm stop` waits for the requests that the metrics report", "--metrics-port N",
    ),
    "exit-timeout-secs": ("`tllm stop` sets the time limit", "`tllm stop --timeout N`"),
    "log-file": ("tllm reads the log from Triton's output", "`tllm logs -f`"),
}  # fmt: skip
# Repeatable options. Triton uses the user's values in addition to tllm's values.
_REPEATABLE = frozenset(
    ("backend-config", "cache-config", "trace-config", "http-restricted-api",
     "grpc-restricted-protocol", "rate-limit-resource", "host-policy")
)  # fmt: skip
_VALUE = re.compile(r"-?[^-].*|-|")


def split_names(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the arguments of `tllm start` into model names and Triton options.

    The model names precede the first option.
    """
    first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return tuple(words[:first]), tuple(words[first:])


def find_names(words: Sequence[str]) -> frozenset[str]:
    """Return the names of the Triton options in `words`.

    An option has the form `--name=value`, `--name value` or `--name`. Raise `BadInput` if a word is
    neither an option nor an option value, or if an option is reserved for tllm.
    """
    names: list[str] = []
    may_be_value = False
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, has_value, _ = word[2:].partition("=")
            names.append(name)
            may_be_value = not has_value
        elif may_be_value and _VALUE.fullmatch(word):
            may_be_value = False
        else:
            raise BadInput(
                f"{word!r} is not a Triton option.",
                why="tllm passes arguments after -- to tritonserver, whose options have the form "
                "--name=value",
                next_step="put model names before --, for example "
                "`tllm start NAME -- --http-thread-count=16`",
            )
    for name in names:
        _check(name)
    return frozenset(names)


def _check(name: str) -> None:
    # Also reject prefixes, because Triton accepts unambiguous prefixes of option names.
    reserved = next((each for each in _RESERVED if each.startswith(name)), None)
    if reserved is not None:
        why, instead = _RESERVED[reserved]
        raise BadInput(
            f"--{name} cannot be passed to Triton.", why=why, next_step=f"use {instead} instead"
        )


def drop_overridden(flags: Flags, names: frozenset[str]) -> Flags:
    """Return `flags` without the flags that the passthrough options `names` override.

    Keep repeatable flags.
    """
    dropped = names - _REPEATABLE
    return {name: value for name, value in flags.items() if name not in dropped}
