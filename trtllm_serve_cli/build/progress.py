"""Parse build progress from the output of build steps."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The current activity of a build step.

    `fraction` is the completed fraction of the activity, from 0 to 1, or `None` if unknown.
    """

    what: str
    fraction: float | None = None


# Prefix of TensorRT and TensorRT-LLM log lines: an optional time, the program, and an optional
# severity, each in brackets.
_STAMP = re.compile(r"^(?:\[\S+\] )?\[(?:TRT|TRT-LLM|TensorRT-LLM)\] ?(?:\[\w\] )?")
# A tqdm progress bar: `what:  38%|███▊      | 3/8 [00:05<00:08,  1.6s/it]`.
_TQDM = re.compile(r"^(?P<what>.*?):? *(?P<percent>\d{1,3})%\|.*\| *\S+/\S+ \[")
# A tqdm progress bar without a known total: `286it [00:50,  5.63it/s]`.
_TQDM_COUNT = re.compile(r"^(?:(?P<what>.*?): )?(?P<done>\d+)\w+ \[\d\d:\d\d")
# A Rich progress bar, `what ━━━━━━ 45% • 0:00:05`, or a plain percentage.
_PERCENT = re.compile(
    r"^(?P<what>[^\W\d][^%]*?)[^\w%)]*\b(?P<percent>\d{1,3})(?:\.\d+)? ?%(?= *(?:$|[•|(\[]))"
)
_COUNTED = re.compile(r"^(?P<what>[^\W\d][\w -]*?):? +\(?(?P<done>\d+) ?/ ?(?P<total>\d+)\)?$")
# (pattern, activity) pairs for the output of TensorRT programs and quantizers.
_PHASES = tuple(
    (re.compile(sign), what)
    for sign, what in (
        (r"Init builder kernel library", "loading TensorRT's kernels"),
        (r"[Tt]iming cache in use", "choosing the fastest kernels"),
        (r"^Detected \d+ inputs", "planning memory"),
        (r"^Engine generation completed", "engine generated"),
        (r"^Serializing engine to .*rank(\d+)\.engine", r"writing the engine of rank \1"),
        (r"^Loading weights|^Loading HF ", "loading weights"),
        (r"^Inserted (\d+) quantizers", r"calibrating \1 quantizers"),
        (r"^(?:Calibrating batch|calibration batch) (\d+)", r"calibrating, batch \1"),
        (r"^Quantization done", "writing the quantized checkpoint"),
    )
)


def parse_progress(line: str) -> Progress | None:
    """Return the progress in an output line, or `None` if the line does not report progress."""
    text = _STAMP.sub("", line.strip())
    if found := _TQDM.search(text) or _PERCENT.search(text):
        return _progress(found["what"], int(found["percent"]), 100)
    if found := _COUNTED.search(text):
        return _progress(found["what"], int(found["done"]), int(found["total"]))
    if found := _TQDM_COUNT.search(text):
        return Progress(f"{found['what'] or 'reading'}, {found['done']} done")
    for sign, what in _PHASES:
        if found := sign.search(text):
            return Progress(found.expand(what))
    return None


def _progress(what: str, done: int, total: int) -> Progress | None:
    return Progress(what.strip(" :"), done / total) if 0 <= done <= total > 0 else None
