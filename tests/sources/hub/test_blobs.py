"""Downloads of large files when the network, the server or the process fails."""

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
    """A stop event that records each wait instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout)
        return self.is_set()


class FakeOpener:
    """A connection that sends `steps[i]` bytes of CONTENT for request i, or raises `steps[i]`.

    `starts` contains the offset of each request. `progress` contains the calls to the progress
    callbacks.
    """

    def __init__(self, *steps: int | Exception, content: bytes = CONTENT, knows_ranges=True):
        self.steps = list(steps)
        self.content = content
        self.knows_ranges = knows_ranges
        self.starts: list[int] = []
        self.progress: list[tuple[str, int]] = []
        self.messages: list[str] = []
        self.stop = Impatient()

    @contextmanager
    def open_at(self, start):
        self.starts.append(start)
        step = self.steps.pop(0) if self.steps else len(self.content)
        if isinstance(step, Exception):
            raise step
        start = start if self.knows_ranges else 0
        yield start, [self.content[start : start + step]]

    def fetch(self, blob, *more, etag=SHA256) -> bool:
        remote = RemoteFile(etag, (self.open_at, *(opener.open_at for opener in more)))
        effects = Effects(
            set_received=lambda num_bytes: self.progress.append(("set", num_bytes)),
            add_received=lambda num_bytes: self.progress.append(("add", num_bytes)),
            notify=self.messages.append,
            stop=self.stop,
            translate=nullcontext,
        )
        return fetch_blob(blob, lambda: remote, effects)


def broken(wait_s: float | None = None) -> BrokenDownload:
    error = BrokenDownload("It broke.", why="a cable")
    error.wait_s = wait_s
    return error


def test_blob_is_named_after_its_content(blob):
    opener = FakeOpener()
    assert opener.fetch(blob)
    assert blob.path.read_bytes() == CONTENT
    assert [path.name for path in blob.path.parent.iterdir()] == [SHA256]
    assert opener.progress == [("set", 0), ("add", len(CONTENT))]


def test_existing_blob_is_not_downloaded(blob):
    blob.path.write_bytes(CONTENT)
    opener = FakeOpener()
    assert not opener.fetch(blob)
    assert (opener.starts, opener.progress) == ([], [("set", len(CONTENT))])


def test_resumes_a_partial_file(blob):
    blob.partial.write_bytes(CONTENT[:100])
    opener = FakeOpener()
    assert opener.fetch(blob)
    assert opener.starts == [100]
    assert opener.progress == [("set", 100), ("add", len(CONTENT) - 100)]


def test_resumes_after_each_interruption(blob):
    opener = FakeOpener(10, 20, broken(), 30)
    assert opener.fetch(blob)
    assert opener.starts == [0, 10, 30, 30, 60]
    assert blob.path.read_bytes() == CONTENT
    assert opener.messages[0] == (
        "w: The download of w was interrupted. 10 of 10240 bytes were received. Resuming in 1 s."
    )


def test_restarts_if_the_server_ignores_ranges(blob):
    blob.partial.write_bytes(CONTENT[:100])
    opener = FakeOpener(knows_ranges=False)
    assert opener.fetch(blob)
    assert opener.progress == [("set", 100), ("set", 0), ("add", len(CONTENT))]


def test_gives_up_after_repeated_failures(blob):
    opener = FakeOpener(10, *[broken() for _ in range(9)])
    with pytest.raises(BrokenDownload, match="It broke"):
        opener.fetch(blob)
    assert opener.starts == [0, 10, 10, 10, 10, 10]
    assert opener.stop.waits_s == [1, 2, 4, 8, 16]
    assert blob.partial.read_bytes() == CONTENT[:10]


def test_falls_back_to_the_next_opener(blob):
    first, second = FakeOpener(10, broken()), FakeOpener()
    assert first.fetch(blob, second)
    assert (first.starts, second.starts) == ([0, 10], [10])


def test_does_not_wait_longer_than_the_limit(blob):
    error = HubBusy("Too often.")
    error.wait_s = 3600
    with pytest.raises(HubBusy):
        FakeOpener(error).fetch(blob)


@pytest.mark.parametrize("extra", [b"", b"more"], ids=["same size", "too long"])
def test_removes_wrong_content(blob, extra):
    with pytest.raises(SourceError, match=r"Checksum verification failed for .*w"):
        FakeOpener(content=bytes(len(CONTENT)) + extra).fetch(blob)
    assert not list(blob.path.parent.iterdir())


def test_discards_a_partial_file_that_is_too_long(blob):
    blob.partial.write_bytes(CONTENT + b"more")
    assert FakeOpener().fetch(blob)


def test_leaves_files_without_etag_to_huggingface_hub(blob):
    opener = FakeOpener()
    assert not opener.fetch(blob, etag=None)
    assert opener.starts == []


def test_stop_keeps_the_partial_file(blob):
    blob.partial.write_bytes(CONTENT[:100])
    opener = FakeOpener()
    opener.stop.set()
    with pytest.raises(Stopped):
        opener.fetch(blob)
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


def test_resumes_the_download_of_a_killed_process(tmp_path):
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
    """Wait until a partial file in `cache` has `num_bytes`, and return all partial files."""

    def found():
        return list(cache.glob("*/blobs/*.incomplete"))

    wait_until(lambda: any(path.stat().st_size >= num_bytes for path in found()))
    return found()
