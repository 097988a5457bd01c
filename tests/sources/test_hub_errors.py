from __future__ import annotations

import errno

import pytest

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.hub_errors import translate_hub_errors
from trtllm_serve_cli.sources.source import HubSource


def translate(error: Exception) -> SourceError:
    with (
        pytest.raises(SourceError) as caught,
        translate_hub_errors(HubSource("acme/tiny"), "https://hub"),
    ):
        raise error
    return caught.value


def test_disk_that_fills_up_keeps_what_is_complete():
    assert str(translate(OSError(errno.ENOSPC, "No space left on device"))) == (
        "The disk is full.\n"
        "Why: No space left on device while writing hf:acme/tiny\n"
        "Next: make room and run the same command again, or set HF_HOME to a larger disk"
    )


@pytest.mark.parametrize(
    "error",
    [OSError("Consistency check failed: file should be of size 9"), RuntimeError("xet: gone")],
    ids=["short", "xet"],
)
def test_broken_download_can_be_repeated(error):
    translated = translate(error)
    assert translated.what == "The download of hf:acme/tiny broke off."
    assert translated.why == str(error)


def test_timeout_is_an_unreachable_hub():
    assert translate(TimeoutError("timed out")).what == "https://hub cannot be reached."
