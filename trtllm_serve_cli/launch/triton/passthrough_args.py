"""Options of Triton's own, as they are given to `tllm start` after `--`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.triton.triton_command import Flags

_PORT = "tllm asks the server there, and looks whether the port is free"
_HOST = "tllm has to know where the server listens"
# What the supervisor relies on: why it cannot be said to Triton alone, and what to say instead.
_RESERVED: Mapping[str, tuple[str, str]] = {
    "model-repository": ("what is served follows from the models", "-m NAME, or --repo DIR"),
    "model-store": ("what is served follows from the models", "-m NAME, or --repo DIR"),
    "model-control-mode": (
        "tllm has to know which models may come and go", "--model-control-mode explicit",
    ),
    "load-model": ("tllm waits until what is loaded has answered", "--load-model NAME"),
    "http-port": (_PORT, "--http-port N"),
    "grpc-port": (_PORT, "--grpc-port N"),
    "metrics-port": (_PORT, "--metrics-port N"),
    "http-address": (_HOST, "--host ADDRESS"),
    "grpc-address": (_HOST, "--host ADDRESS"),
    "metrics-address": (_HOST, "--host ADDRESS"),
    "allow-http": ("a server is ready once it has generated a token over HTTP", "--host 127.0.0.1"),
    "allow-metrics": (
        "a stop waits for the requests that the metrics page counts", "--metrics-port N",
    ),
    "exit-timeout-secs": ("how long a stop waits is said when it stops", "tllm stop --timeout N"),
    "log-file": ("tllm reads what Triton says where it starts it", "tllm logs -f"),
}  # fmt: skip
# Given again, these say more instead of something else.
_REPEATABLE = frozenset(
    ("backend-config", "cache-config", "trace-config", "http-restricted-api",
     "grpc-restricted-protocol", "rate-limit-resource", "host-policy")
)  # fmt: skip
_VALUE = re.compile(r"-?[^-].*|-|")


def find_names(words: Sequence[str]) -> frozenset[str]:
    """The names of the options in `words`, each `--name=value`, `--name value` or `--name`.

    Raises `BadInput` for a word that is none of them, and for an option that a supervised server
    cannot be given.
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
                f"{word!r} is no option of Triton's.",
                why="what follows -- is given to tritonserver, whose options are written "
                "--name=value; models are chosen with -m",
                next_step="tllm start -m NAME -- --http-thread-count=16",
            )
    for name in names:
        _check(name)
    return frozenset(names)


def _check(name: str) -> None:
    # Triton takes any beginning of a name that is no other's.
    reserved = next((each for each in _RESERVED if each.startswith(name)), None)
    if reserved is not None:
        why, instead = _RESERVED[reserved]
        raise BadInput(
            f"--{name} cannot be handed on to Triton.", why=why, next_step=f"say it so: {instead}"
        )


def drop_overridden(flags: Flags, names: frozenset[str]) -> Flags:
    """`flags` less those that are given by hand and would contradict them."""
    dropped = names - _REPEATABLE
    return {name: value for name, value in flags.items() if name not in dropped}
