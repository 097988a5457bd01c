"""What becomes of a large file when the network, the server or the process fails."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext

import pytest

from tests.fakes.hub import FakeHub, serve
from tests.samples.checkpoints import hf_files, safetensors
from tests.waiting import wait_until
from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.hub.blobs import Blob, Effects, fetch_blob
from trtllm_serve_cli.sources.hub.bytes import RemoteFile
from trtllm_serve_cli.sources.hub.errors import BrokenDownload, HubBusy
from trtllm_serve_cli.sources.parallel import Stopped

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def blob(tmp_path):
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    return Blob("w", len(CONTENT), SHA256, path=blobs / SHA256, lock=tmp_path / "locks" / "w.lock")


class Impatient(threading.Event):
    """A stop event that notes each wait instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout)
        return self.is_set()


class Line:
    """A server of CONTENT that gives `gives` bytes for each request, or raises what stands there.

    `asked` holds where each request started, and `told` what was said of the progress.
    """

    def __init__(self, *gives: int | Exception, content: bytes = CONTENT, knows_ranges=True):
        self.gives = list(gives)
        self.content = content
        self.knows_ranges = knows_ranges
        self.asked: list[int] = []
        self.told: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.stop = Impatient()

    @contextmanager
    def open_at(self, start):
        self.asked.append(start)
        gives = self.gives.pop(0) if self.gives else len(self.content)
        if isinstance(gives, Exception):
            raise gives
        start = start if self.knows_ranges else 0
        yield start, [self.content[start : start + gives]]

    def fetch(self, blob, *more, etag=SHA256) -> bool:
        remote = RemoteFile(etag, (self.open_at, *(line.open_at for line in more)))
        effects = Effects(
            was_there=lambda num_bytes: self.told.append(("was there", num_bytes)),
            moved=lambda num_bytes: self.told.append(("moved", num_bytes)),
            notify=self.said.append,
            stop=self.stop,
            translate=nullcontext,
        )
        return fetch_blob(blob, lambda: remote, effects)


def broken(wait_s: float | None = None) -> BrokenDownload:
    error = BrokenDownload("It broke.", why="a cable")
    error.wait_s = wait_s
    return error


def test_whole_file_lies_under_the_name_of_its_content(blob):
    line = Line()
    assert line.fetch(blob)
    assert blob.path.read_bytes() == CONTENT
    assert [path.name for path in blob.path.parent.iterdir()] == [SHA256]
    assert line.told == [("was there", 0), ("moved", len(CONTENT))]


def test_file_that_is_there_is_left_alone(blob):
    blob.path.write_bytes(CONTENT)
    line = Line()
    assert not line.fetch(blob)
    assert (line.asked, line.told) == ([], [("was there", len(CONTENT))])


def test_what_an_earlier_run_left_is_gone_on_with(blob):
    blob.partial.write_bytes(CONTENT[:100])
    line = Line()
    assert line.fetch(blob)
    assert line.asked == [100]
    assert line.told == [("was there", 100), ("moved", len(CONTENT) - 100)]


def test_each_break_is_gone_on_with(blob):
    line = Line(10, 20, broken(), 30)
    assert line.fetch(blob)
    assert line.asked == [0, 10, 30, 30, 60]
    assert blob.path.read_bytes() == CONTENT
    assert line.said[0] == (
        "w: The download of w broke off. 10 of 10240 bytes came. Going on in 1 s."
    )


def test_server_that_knows_no_ranges_starts_again(blob):
    blob.partial.write_bytes(CONTENT[:100])
    line = Line(knows_ranges=False)
    assert line.fetch(blob)
    assert line.told == [("was there", 100), ("was there", 0), ("moved", len(CONTENT))]


def test_line_that_gives_nothing_is_given_up(blob):
    line = Line(10, *[broken() for _ in range(9)])
    with pytest.raises(BrokenDownload, match="It broke"):
        line.fetch(blob)
    assert line.asked == [0, 10, 10, 10, 10, 10]
    assert line.stop.waits_s == [1, 2, 4, 8, 16]
    assert blob.partial.read_bytes() == CONTENT[:10]


def test_way_that_gives_nothing_makes_room_for_the_next(blob):
    first, second = Line(10, broken()), Line()
    assert first.fetch(blob, second)
    assert (first.asked, second.asked) == ([0, 10], [10])


def test_hub_that_wants_too_long_a_wait_is_not_waited_for(blob):
    error = HubBusy("Too often.")
    error.wait_s = 3600
    with pytest.raises(HubBusy):
        Line(error).fetch(blob)


@pytest.mark.parametrize("extra", [b"", b"more"], ids=["same size", "too long"])
def test_other_content_is_removed(blob, extra):
    with pytest.raises(SourceError, match="w did not arrive as published"):
        Line(content=bytes(len(CONTENT)) + extra).fetch(blob)
    assert not list(blob.path.parent.iterdir())


def test_leftover_that_is_too_long_is_thrown_away(blob):
    blob.partial.write_bytes(CONTENT + b"more")
    assert Line().fetch(blob)


def test_content_without_a_name_is_left_to_huggingface_hub(blob):
    line = Line()
    assert not line.fetch(blob, etag=None)
    assert line.asked == []


def test_stop_keeps_what_came(blob):
    blob.partial.write_bytes(CONTENT[:100])
    line = Line()
    line.stop.set()
    with pytest.raises(Stopped):
        line.fetch(blob)
    assert blob.partial.read_bytes() == CONTENT[:100]


KILLED = """
import sys
from pathlib import Path
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sources.checkpoint import FetchOptions
from trtllm_serve_cli.sources.fetch import fetch_checkpoint
from trtllm_serve_cli.sources.hub.hub_source import HubSource
from trtllm_serve_cli.sources.hub_address import Hub
fetch_checkpoint(HubSource("acme/tiny"), home=find_home(), options=FetchOptions(),
                 notify=print, hub=Hub(sys.argv[1], Path(sys.argv[2])))
"""


def test_killed_process_is_gone_on_with(tmp_path):
    large = safetensors(num_floats=3 << 20)
    files = hf_files() | {"model.safetensors": large}
    with serve(FakeHub(files, hold_after_bytes=11 << 20)) as fake:
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, fake.url, str(tmp_path / "cache")]
        )
        assert fake.is_held.wait(60)
        [partial] = wait_for_bytes(tmp_path / "cache", 10 << 20)
        process.kill()
        process.wait()
        left = partial.stat().st_size
    with serve(FakeHub(files)) as fake:
        subprocess.run(
            [sys.executable, "-c", KILLED, fake.url, str(tmp_path / "cache")], check=True
        )
    assert fake.resumed() == [left]
    blobs = tmp_path / "cache" / "models--acme--tiny" / "blobs"
    assert (blobs / fake.sha256("model.safetensors")).read_bytes() == large
    assert not list(blobs.glob("*.incomplete"))


def wait_for_bytes(cache, num_bytes):
    """The partial files below `cache`, once one has so many bytes."""

    def found():
        return list(cache.glob("*/blobs/*.incomplete"))

    wait_until(lambda: any(path.stat().st_size >= num_bytes for path in found()))
    return found()
