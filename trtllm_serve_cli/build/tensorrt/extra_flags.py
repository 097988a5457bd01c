"""Check the flags that users set directly and pass them to the programs that support them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from packaging.version import Version

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.build.tensorrt.command import RequestedFlag, show_program
from trtllm_serve_cli.build.tensorrt.flags import Flag, find_flag, find_owner, is_owned
from trtllm_serve_cli.build.tensorrt.versions import FIRST_WITHOUT_ENGINES, load_containers
from trtllm_serve_cli.errors import BadInput

# A function that returns the programs that can build the model's engine with a given TensorRT-LLM
# version.
ProgramsOf = Callable[[Version], Sequence[str]]
_OPTIONS = frozenset(each.name for each in dataclasses.fields(EngineOptions))
_SWITCH = {"true": True, "false": False}


def check_flags(
    flags: Mapping[str, str], planned: Sequence[str], version: Version, programs_of: ProgramsOf
) -> None:
    """Raise `BadInput` for the first flag that the build cannot use.

    The build cannot use a flag that tllm sets itself, a flag that no planned program has, or a flag
    with an invalid value. `flags` maps TensorRT-LLM's flag names to values. `planned` contains the
    programs that the build runs. `programs_of` determines which programs and versions the error
    message suggests.
    """
    for name, value in flags.items():
        if name in _OPTIONS or is_owned(name):
            raise _owned_flag(name)
        found = [(each, flag) for each in planned if (flag := find_flag(name, each, version))]
        if not found:
            raise _missing_flag(name, planned, version, programs_of)
        for program, flag in found:
            _parse_value(name, value, flag, program, version)


def add_flags(
    requested: Iterable[RequestedFlag], flags: Mapping[str, str], program: str, version: Version
) -> list[RequestedFlag]:
    """Return the requested flags, plus the flags in `flags` that the program supports.

    A value in `flags` overrides a value that tllm selected for the same flag. Raise `BadInput` if a
    tllm option already sets a flag in `flags`, or if a value in `flags` is not valid.
    """
    extra = {
        flag.name: _parse_value(name, value, flag, program, version)
        for name, value in flags.items()
        if (flag := find_flag(name, program, version))
    }
    kept = [each for each in requested if not (each.is_derived and each.flag in extra)]
    for each in kept:
        if each.flag in extra:
            raise BadInput(
                f"The {each.flag} flag is set twice.",
                why=f"tllm's {each.option} option also sets this flag",
                next_step=f"omit {each.option} or {each.flag.lstrip('-')}",
            )
    return [*kept, *(RequestedFlag(name, each) for name, each in extra.items() if each is not None)]


def _parse_value(
    name: str, text: str, flag: Flag, program: str, version: Version
) -> tuple[str | int, ...] | None:
    """Return the flag's values, parsed from `text`.

    For a flag that takes no value, return an empty tuple if `text` is "true", or `None` if it is
    "false". Raise `BadInput` if the flag does not accept the values.
    """
    if flag.type == "flag":
        if text.lower() not in _SWITCH:
            raise _invalid_value(name, text, "true or false", program, version)
        return () if _SWITCH[text.lower()] else None
    words = [each.strip() for each in text.split(",")] if flag.nargs not in (None, "?") else [text]
    if isinstance(flag.nargs, int) and len(words) != flag.nargs:
        raise _invalid_value(name, text, f"{flag.nargs} values", program, version)
    return tuple(_parse_word(name, word, flag, program, version) for word in words)


def _parse_word(name: str, word: str, flag: Flag, program: str, version: Version) -> str | int:
    value: str | int = word
    try:
        if flag.type == "int":
            value = int(word)
        elif flag.type == "float":
            float(word)
    except ValueError as error:
        expected = "an integer" if flag.type == "int" else "a number"
        raise _invalid_value(name, word, expected, program, version) from error
    if flag.choices and value not in flag.choices:
        raise _invalid_value(name, word, ", ".join(map(str, flag.choices)), program, version)
    return value


def _invalid_value(name: str, text: str, expected: str, program: str, version: Version) -> BadInput:
    return BadInput(
        f"{text!r} is not a valid value for the {name} flag.",
        why=f"{show_program(program)} in TensorRT-LLM {version} accepts {expected}",
        next_step=f"pass --build-option {name}=VALUE with a valid value",
    )


def _owned_flag(name: str) -> BadInput:
    owner = name if name in _OPTIONS else find_owner(name)
    return BadInput(
        f"The {name} flag cannot be set directly.",
        why=f"tllm's {owner} option sets this flag" if owner else "tllm sets this flag itself",
        next_step=f"pass --build-option {owner}=VALUE" if owner else f"omit {name}",
    )


def _missing_flag(
    name: str, planned: Sequence[str], version: Version, programs_of: ProgramsOf
) -> BadInput:
    others = [each for each in programs_of(version) if find_flag(name, each, version)]
    if others:
        return BadInput(
            f"The {name} flag has no effect on this engine.",
            why=f"the flag applies to {_list(others)}, but this build runs {_list(planned)}",
            next_step=f"omit {name}, or change --quantization or --kv-cache-dtype so that the "
            f"build runs {show_program(others[0])}",
        )
    having = [
        each
        for each in sorted({container.trtllm for container in load_containers()})
        if each < FIRST_WITHOUT_ENGINES
        and any(find_flag(name, program, each) for program in programs_of(each))
    ]
    if not having:
        return BadInput(
            f"TensorRT-LLM {version} does not have the {name} flag.",
            why="no TensorRT-LLM version supports this flag for this model",
            next_step="check the spelling, or omit the flag",
        )
    span = str(having[0]) if len(having) == 1 else f"{having[0]} to {having[-1]}"
    return BadInput(
        f"TensorRT-LLM {version} does not have the {name} flag.",
        why=f"the flag is available only in TensorRT-LLM {span}",
        next_step=f"omit {name}, or use TensorRT-LLM {having[-1]}",
    )


def _list(programs: Sequence[str]) -> str:
    return " and ".join(map(show_program, programs))
