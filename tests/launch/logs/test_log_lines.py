"""Levels and models of lines from real logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.launch.logs.log_lines import LogLine, LogReader

MODELS = ("demo", "tensorrt_llm", "tensorrt_llm_bls", "a_tensorrt_llm")


def read(*lines: str) -> list[tuple[str, str | None]]:
    return [(line.level, line.model) for line in LogReader(MODELS).read_all(lines)]


@pytest.mark.parametrize(
    ("line", "level", "model"),
    [
        (
            'I1122 00:22:45.869470 7003 model_lifecycle.cc:624] "successfully unloaded '
            "'tensorrt_llm' version 1\"",
            "info", "tensorrt_llm",
        ),
        (
            'I1122 00:22:50.354069 7003 model_lifecycle.cc:472] "loading: tensorrt_llm_bls:1"',
            "info", "tensorrt_llm_bls",
        ),
        (
            "I1122 00:22:50.357404 7003 python_be.cc:2249] "
            '"TRITONBACKEND_ModelInstanceInitialize: a_tensorrt_llm_0_0 (CPU device 0)"',
            "info", "a_tensorrt_llm",
        ),
        (
            'E1122 00:22:30.034918 7003 server.cc:241] "CudaDriverHelper has not been init"',
            "error", None,
        ),
        (
            "2026-11-22T00:22:30Z W 7003 metrics.cc:798] \"DCGM unable to start: 'demo'\"",
            "warning", "demo",
        ),
        ("E tensorrt_llm] the engine worker died (signal 9); restarting it", "error",
         "tensorrt_llm"),
        ('{"time": "2026-11-22T00:22:30.000Z", "level": "warning", "model": "demo"}',
         "warning", "demo"),
        ('{"time": "2026-11-22T00:22:30.000Z", "level": "info"}', "info", None),
        ('{"time": "2026-11-22T00', "info", None),
        ("[TensorRT-LLM][WARNING] Logger level already set", "warning", None),
        ("[11/21/2026-09:50:18] [TRT-LLM] [E] out of memory", "error", None),
        ("error: creating server: Internal - failed to load all models", "error", None),
        ("Signal (15) received.", "info", None),
    ],
)  # fmt: skip
def test_level_and_model_of_a_line(line: str, level: str, model: str | None) -> None:
    assert read(line) == [(level, model)]


def test_traceback_has_the_level_and_model_of_its_line() -> None:
    assert read(
        "E demo] Traceback (most recent call last):",
        '  File "/r/demo/1/model.py", line 1, in execute',
        "    1 / 0",
        "ZeroDivisionError: division by zero",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "x.py", line 1',
        "RuntimeError: no",
        "Signal (15) received.",
    ) == [*[("error", "demo")] * 7, *[("error", None)] * 3, ("info", None)]


def test_continuation_lines_have_the_level_and_model_of_their_line() -> None:
    assert read(
        "W1122 00:22:50.354069 7003 pb_stub.cc:366]  Failed to initialize 'demo': ImportError",
        "",
        "At:",
        "  /r/m/1/model.py(1): <module>",
        "+------+",
        "| a    |",
        "I1122 00:22:50.354069 7003 server.cc:1] done",
    ) == [*[("warning", "demo")] * 6, ("info", None)]


@pytest.mark.parametrize(("level", "shown"), [("error", "e"), ("warning", "ew"), ("info", "ewi")])
def test_more_severe_lines_pass_the_level(level: str, shown: str) -> None:
    lines = [LogLine("e", "error"), LogLine("w", "warning"), LogLine("i", "info")]
    assert "".join(line.text for line in lines if line.is_at_least(level)) == shown


PIECES = st.sampled_from(
    ["I1122 00:22:50.354069 7003 a.cc:1] ", "E demo] ", "Traceback (most recent call last):", "  ",
     "", "At:", "Error", "'demo'", "x_0_0", "[TensorRT-LLM][ERROR]"]
)  # fmt: skip


@given(st.lists(st.lists(PIECES | st.text(max_size=5), max_size=4).map("".join), max_size=20))
def test_no_line_is_lost_or_changed(lines: list[str]) -> None:
    reader = LogReader(MODELS)
    whole = list(reader.read_all(lines))
    assert [line.text for line in whole] == lines
    # The result is the same for a log that is read line by line.
    again = LogReader(MODELS)
    assert [again.read(line) for line in lines] == whole
