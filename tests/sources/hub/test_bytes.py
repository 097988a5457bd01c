"""Downloads from hf_xet's storage on a local disk, and downloads over HTTP."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from tests.fakes.hub import COMMIT, FakeHub, serve
from tests.samples.checkpoints import hf_files, safetensors
from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sources.checkpoint import FetchOptions
from trtllm_serve_cli.sources.fetch import fetch_checkpoint
from trtllm_serve_cli.sources.hub.bytes import XetGroup, find_remote_file
from trtllm_serve_cli.sources.hub.hub_source import HubSource
from trtllm_serve_cli.sources.hub_address import Hub

LARGE = safetensors(num_floats=1 << 20)
FILES = hf_files() | {"model.safetensors": LARGE}
BLOB = hashlib.sha256(LARGE).hexdigest()


def fetch(hub, messages=None):
    return fetch_checkpoint(
        HubSource("acme/tiny"),
        home=find_home(),
        options=FetchOptions(),
        notify=(lambda text: None) if messages is None else messages.append,
        hub=hub,
    )


@pytest.fixture
def hub(tmp_path):
    return Hub(None, tmp_path / "cache")


@pytest.fixture
def xet(tmp_path, monkeypatch):
    """Return the folder and address of a Xet storage, and the hash of the large file in it."""
    hf_xet = pytest.importorskip("hf_xet", reason="hf_xet is not made for this platform")
    monkeypatch.setenv("HF_XET_CACHE", str(tmp_path / "xet-cache"))
    storage = tmp_path / "xet"
    storage.mkdir()
    (tmp_path / "large").write_bytes(LARGE)
    address = f"local://{storage}"
    with hf_xet.XetSession().new_upload_commit(endpoint=address) as commit:
        upload = commit.start_upload_file(str(tmp_path / "large"))
    return storage, (address, {"model.safetensors": upload.result().xet_info.hash})


@pytest.fixture
def fake_with_xet(xet):
    with serve(FakeHub(FILES, xet=xet[1])) as fake:
        yield fake


def with_endpoint(hub, fake):
    return Hub(fake.url, hub.cache)


def test_downloads_from_xet_if_offered(fake_with_xet, hub):
    checkpoint = fetch(with_endpoint(hub, fake_with_xet))
    assert (checkpoint.path / "model.safetensors").read_bytes() == LARGE
    assert "model.safetensors" not in fake_with_xet.downloaded()


def test_xet_resumes_a_partial_download(fake_with_xet, hub):
    partial = hub.cache / "models--acme--tiny" / "blobs" / f"{BLOB}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(LARGE[: 1 << 20])
    messages = []
    checkpoint = fetch(with_endpoint(hub, fake_with_xet), messages)
    assert (checkpoint.path / "model.safetensors").read_bytes() == LARGE
    assert messages == [
        f"Downloading hf:acme/tiny@{COMMIT}: 4.2 MB into {hub.cache} (1.0 MB already present)."
    ]


def test_falls_back_from_xet_to_http(fake_with_xet, hub, xet, tmp_path):
    shutil.rmtree(xet[0])
    messages = []
    checkpoint = fetch(with_endpoint(hub, fake_with_xet), messages)
    assert (checkpoint.path / "model.safetensors").read_bytes() == LARGE
    assert messages[1:] == [
        f"model.safetensors: The download of model.safetensors was interrupted. 0 of {len(LARGE)} "
        "bytes were received. Resuming in 1 s."
    ]
    assert "model.safetensors" in fake_with_xet.downloaded()


def test_reports_a_web_page_instead_of_a_file(hub):
    with serve(FakeHub(FILES)) as fake:
        source = HubSource("acme/tiny", COMMIT)
        remote = find_remote_file(
            source, "model.safetensors", endpoint=fake.url, timeout_s=5, xet=XetGroup()
        )
        fake.body, fake.headers = b"<html>log in</html>", {"Content-Type": "text/html"}
        with (
            pytest.raises(SourceError, match="did not come from the hub"),
            remote.openers[0](0),
        ):
            pass
