"""Progress parsed from the output of build programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from trtllm_serve_cli.build.progress import Progress, parse_progress


@pytest.mark.parametrize(
    ("line", "what", "fraction"),
    [
        ("Loading checkpoint shards:  38%|███▊      | 3/8 [00:05<00:08,  1.6s/it]",
         "Loading checkpoint shards", 0.38),
        ("Loading checkpoint shards: 3/8", "Loading checkpoint shards", 0.375),
        ("Downloading shards (2/4)", "Downloading shards", 0.5),
        ("  7%|7         | 5/71 [00:00<00:01, 45.0it/s]", "", 0.07),
        ("286it [00:50,  5.63it/s]", "reading, 286 done", None),
        ("Generating train split: 3000 examples [00:01, 1500.00 examples/s]", None, None),
        ("Applying Weight Compression ━━━━━━━━━━ 45% • 0:00:05 • 0:00:06",
         "Applying Weight Compression", 0.45),
        ("Statistics collection 100%", "Statistics collection", 1.0),
        ("[05/03/2025-10:30:43] [TRT] [I] Engine generation completed in 3.00621 seconds.",
         "engine generated", None),
        ("[10/12/2024-15:46:23] [TRT-LLM] [I] Serializing engine to /out/rank3.engine...",
         "writing the engine of rank 3", None),
        ("[11/16/2024-00:05:47] [TRT] [I] Global timing cache in use. Profiling results in this "
         "builder pass will be stored.", "choosing the fastest kernels", None),
        ("[TRT] [I] Detected 49 inputs and 41 output network tensors.", "planning memory", None),
        ("Calibrating batch 510", "calibrating, batch 510", None),
        ("Inserted 1347 quantizers", "calibrating 1347 quantizers", None),
    ],
)  # fmt: skip
def test_progress_of_a_line(line: str, what: str | None, fraction: float | None) -> None:
    expected = Progress(what, fraction) if what is not None else None
    assert parse_progress(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "made",
        "[04/28/2024-15:57:10] [TRT-LLM] [I] Memory clock: 7000 MHz",
        "GPU memory is used to 45% of 80 GB",
        "see https://host/a/2/3",
        "Shards 9/8",
        "Shards 0/0",
        "2024/11",
        "progress 101%",
    ],
)
def test_line_without_progress(line: str) -> None:
    assert parse_progress(line) is None


NAMES = st.from_regex(r"[a-z]([a-z -]{0,20}[a-z])?", fullmatch=True)


@given(NAMES, st.integers(1, 10**6), st.data())
def test_tqdm_bars_are_parsed(what: str, total: int, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, total))
    bar = tqdm.format_meter(done, total, elapsed=5.0, prefix=f"{what}: ", ncols=None)
    progress = parse_progress(bar)
    assert progress is not None
    assert (progress.what, progress.fraction) == (
        what.strip(),
        pytest.approx(done / total, abs=0.006),
    )


@given(st.text(max_size=80))
def test_any_line_is_accepted(line: str) -> None:
    progress = parse_progress(line)
    assert progress is None or progress.fraction is None or 0 <= progress.fraction <= 1
