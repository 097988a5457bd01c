from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.disk_space import check_space, find_free_bytes, show_size


def test_full_disk_reports_free_space(tmp_path):
    with pytest.raises(SourceError) as caught:
        check_space(tmp_path, 7 * 10**9, free=lambda folder: 3_000_000)
    assert str(caught.value) == (
        f"The disk that contains {tmp_path} does not have enough space for 7.0 GB of data.\n"
        "Why: only 3.0 MB is free\n"
        "Next: delete files on this disk, or set HF_HOME (the Hugging Face cache), "
        "ENGINE_DEST_PATH (engines) or TLLM_HOME (all other data) to a folder on a larger disk"
    )


def test_accepts_sufficient_space(tmp_path):
    check_space(tmp_path, 10, free=lambda folder: 10)


def test_finds_free_space_of_a_missing_folder(tmp_path):
    assert find_free_bytes(tmp_path / "a" / "b") > 0
    assert find_free_bytes(Path("/")) > 0


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (98_362_432, "98.4 MB"), (2 * 10**12, "2.0 TB")],
)
def test_shows_sizes_with_units(num_bytes, shown):
    assert show_size(num_bytes) == shown
