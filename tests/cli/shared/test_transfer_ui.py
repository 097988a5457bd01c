"""The progress of a download on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from trtllm_serve_cli.cli.shared.transfer_ui import draw_transfer
from trtllm_serve_cli.sources.progress import FileProgress, Progress

GB = 10**9


def draw(progress: Progress) -> list[str]:
    screen = Console(file=io.StringIO(), width=80)
    screen.print(draw_transfer(progress))
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_download_fits_into_80_columns() -> None:
    files = tuple(
        FileProgress(f"model-{n:05}-of-00030.safetensors", n * GB, 5 * GB, 1e8) for n in range(5)
    )
    assert draw(Progress("Downloading", files, 4e8)) == [
        "Downloading           10.0 GB of 25.0 GB (40 %), 400.0 MB/s, 38 s left",
        "model-00001-of-00030  1.0 GB of 5.0 GB (20 %), 100.0 MB/s, 40 s left",
        "model-00002-of-00030  2.0 GB of 5.0 GB (40 %), 100.0 MB/s, 30 s left",
        "model-00003-of-00030  3.0 GB of 5.0 GB (60 %), 100.0 MB/s, 20 s left",
        "model-00004-of-00030  4.0 GB of 5.0 GB (80 %), 100.0 MB/s, 10 s left",
    ]


def test_many_files_are_summarized() -> None:
    files = tuple(FileProgress(str(n), 1, 2, 0.0) for n in range(20))
    assert draw(Progress("Verifying", files, 0.0))[-1] == "and 12 more"
