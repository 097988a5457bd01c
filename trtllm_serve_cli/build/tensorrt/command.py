"""Render the arguments for a TensorRT-LLM program and check that the program supports them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.version import Version

from trtllm_serve_cli.build.engine_options import show_option
from trtllm_serve_cli.build.tensorrt.flags import Flag, flags_of
from trtllm_serve_cli.build.tensorrt.versions import (
    FIRST_WITH_ENGINES,
    FIRST_WITHOUT_ENGINES,
    load_containers,
)
from trtllm_serve_cli.errors import BadInput


@dataclass(frozen=True, slots=True)
class RequestedFlag:
    """A flag with its values, and the `EngineOptions` field that requests the flag.

    `values` is empty if the flag takes no value. `option` is empty if no option requests the flag.
    `is_derived` is true if tllm selects the value. A flag from the user overrides such a value.
    """

    flag: str
    values: tuple[str | int, ...] = ()
    option: str = ""
    is_derived: bool = False


def request_value(flag: str, value: str | int | None, option: str) -> Iterator[RequestedFlag]:
    """Yield the flag with `value`. If `value` is `None`, yield nothing."""
    if value is not None:
        yield RequestedFlag(flag, (value,), option)


def request_switch(option: str, value: bool | None) -> Iterator[RequestedFlag]:
    """Yield the `--OPTION` flag with "enable" or "disable". If `value` is `None`, yield nothing."""
    if value is not None:
        yield RequestedFlag(f"--{option}", ("enable" if value else "disable",), option)


def request_flag(option: str, value: bool) -> Iterator[RequestedFlag]:
    """Yield the `--OPTION` flag without a value if `value` is true."""
    if value:
        yield RequestedFlag(f"--{option}", option=option)


def render_arguments(
    program: str, version: Version, requested: Iterable[RequestedFlag]
) -> tuple[str, ...]:
    """Return the command-line arguments of `program` for the requested flags.

    Raise `BadInput` if the program in TensorRT-LLM `version` does not support a flag or value.
    """
    return tuple(word for each in requested for word in _render(program, version, each))


def _render(program: str, version: Version, requested: RequestedFlag) -> Iterator[str]:
    flag = flags_of(program, version).get(requested.flag)
    if flag is None:
        raise _unknown_flag(program, version, requested)
    if flag.choices and (
        invalid := [each for each in requested.values if each not in flag.choices]
    ):
        raise _invalid_choice(program, version, requested, flag, invalid)
    yield flag.name
    yield from map(str, requested.values)


def _unknown_flag(program: str, version: Version, requested: RequestedFlag) -> BadInput:
    later = [each for each in _releases_after(version) if requested.flag in flags_of(program, each)]
    option = show_option(requested.option)
    return BadInput(
        f"TensorRT-LLM {version} does not support {option}.",
        why=f"in this version, {show_program(program)} does not have the {requested.flag} flag",
        next_step=(
            f"omit {option}, or use TensorRT-LLM {later[0]} or later" if later else f"omit {option}"
        ),
    )


def _invalid_choice(
    program: str, version: Version, requested: RequestedFlag, flag: Flag, invalid: list[str | int]
) -> BadInput:
    option = show_option(requested.option)
    return BadInput(
        f"TensorRT-LLM {version} does not support {option} {' '.join(map(str, invalid))}.",
        why=f"in this version, {show_program(program)} accepts these values for {flag.name}: "
        + ", ".join(map(str, flag.choices)),
        next_step=f"set {option} to a valid value",
    )


def _releases_after(version: Version) -> list[Version]:
    releases = {each.trtllm for each in load_containers()}
    return sorted(
        each for each in releases if max(version, FIRST_WITH_ENGINES) < each < FIRST_WITHOUT_ENGINES
    )


def show_program(program: str) -> str:
    """Return a program's name for error messages."""
    family, _, script = program.rpartition("/")
    return f"{script} for {family}" if family else program
