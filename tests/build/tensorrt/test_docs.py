"""The tables of docs/reference/tensorrt-llm.md match the tables of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtllm_serve_cli.build.tensorrt.versions import load_table
from trtllm_serve_cli.sizing.gpus import load_gpus
from trtllm_serve_cli.sizing.precision import WEIGHT_FORMATS

_PAGE = Path(__file__).parents[3] / "docs/reference/tensorrt-llm.md"
_CONVERTED = ("int8", "int4", "int4_gptq", "fp8_rowwise")
_FORMATS = (
    "int8", "int4", "int8_sq", "int4_awq", "int4_gptq", "w4a8_awq", "fp8", "fp8_rowwise", "nvfp4",
)  # fmt: skip
_PROGRAMS = {
    **dict.fromkeys(_FORMATS, "`quantize.py`"),
    **dict.fromkeys(_CONVERTED, "`convert_checkpoint.py`"),
    "int8_sq": "`quantize.py` or `convert_checkpoint.py`",
}


def test_the_table_of_formats_is_right() -> None:
    assert _table_after("## Formats") == list(_format_rows())


def test_the_table_of_architectures_is_right() -> None:
    assert _table_after("## Architectures") == list(_architecture_rows())


def test_the_table_of_architectures_without_a_plan_is_right() -> None:
    assert _table_after("## Architectures without a plan") == [
        f"| {', '.join(f'`{name}`' for name in row['architectures'])} | `{row['program']}` | "
        f"{row['why']} |"
        for row in load_table("unplanned.yaml")
    ]


def _table_after(title: str) -> list[str]:
    lines = _PAGE.read_text(encoding="utf-8").split(f"{title}\n")[1].split("\n## ")[0].splitlines()
    return [line for line in lines if line.startswith("|")][2:]


def _format_rows() -> Iterator[str]:
    for name in _FORMATS:
        named = WEIGHT_FORMATS[name]
        least = ".".join(map(str, named.capability))
        first = min(
            (gpu for gpu in load_gpus().values() if gpu.capability >= named.capability),
            key=lambda gpu: gpu.capability,
        )
        yield f"| `{name}` | {_PROGRAMS[name]} | {named.bits:g} | {least} (`{first.name}`) |"


def _architecture_rows() -> Iterator[str]:
    for family in load_table("families.yaml").values():
        for name, own in family["architectures"].items():
            since = own if isinstance(own, str) else own["since"]
            formats = family.get("quantizations", {})
            if not isinstance(own, str):
                formats = own["quantizations"]
            words = ", ".join(
                _show(each, formats[each], since) for each in _FORMATS if each in formats
            )
            yield f"| `{name}` | {_short(since)} | {words or 'none'} |"


def _show(name: str, first: str, since: str) -> str:
    is_later = tuple(map(int, first.split("."))) > tuple(map(int, since.split(".")))
    return f"`{name}` ({_short(first)})" if is_later else f"`{name}`"


def _short(version: str) -> str:
    return version.removesuffix(".0")
