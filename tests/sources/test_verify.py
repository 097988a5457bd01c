from __future__ import annotations

import hashlib

import pytest

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.verify import verify_files


@pytest.fixture
def verify(tmp_path):
    """Return a function that verifies `w` against the hash of `good` and returns its messages."""
    (tmp_path / "w").write_bytes(b"good")

    def verify():
        messages = []
        sha256 = {"w": hashlib.sha256(b"good").hexdigest()}
        verify_files(
            tmp_path,
            sha256,
            ledger=tmp_path / "ledger" / "x.json",
            notify=messages.append,
            watch=lambda progress: None,
        )
        return messages

    return verify


def test_hashes_a_verified_file_once(verify):
    assert verify() == ["Verifying the checksum of 1 file."]
    assert verify() == []


def test_hashes_a_changed_file_again(verify, tmp_path):
    verify()
    (tmp_path / "w").write_bytes(b"evil, and longer")
    with pytest.raises(SourceError, match=r"Checksum verification failed for .*w"):
        verify()


def test_removes_a_corrupt_file_and_its_blob(verify, tmp_path):
    (tmp_path / "w").unlink()
    (tmp_path / "blob").write_bytes(b"evil")
    (tmp_path / "w").symlink_to("blob")
    with pytest.raises(SourceError):
        verify()
    assert not (tmp_path / "blob").exists()
    assert not (tmp_path / "w").is_symlink()


def test_ignores_an_invalid_ledger(verify, tmp_path):
    verify()
    (tmp_path / "ledger" / "x.json").write_text("[")
    assert verify() == ["Verifying the checksum of 1 file."]
