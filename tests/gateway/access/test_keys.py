from __future__ import annotations

import errno
import json
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from trtllm_serve_cli.choices import KeyPolicy
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.access.keys import KeyRing, add_key, hash_key, read_keys, revoke_key


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_ring(file: Path, policy: KeyPolicy = "auto") -> tuple[KeyRing, Clock]:
    clock = Clock()
    return KeyRing(file, policy, clock), clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_file_contains_only_the_hash_and_belongs_to_the_owner(file: Path) -> None:
    key = add_key(file, "alice", now_s=1.0, concurrency=2, models=("demo",))
    text = file.read_text()
    assert key.startswith("tllm-")
    assert len(key) == len("tllm-") + 43
    assert key.removeprefix("tllm-") not in text
    assert hash_key(key) in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (stored,) = read_keys(file)
    assert (stored.name, stored.concurrency, stored.models) == ("alice", 2, ("demo",))


def test_supervisor_has_a_key_that_is_not_in_the_file(file: Path) -> None:
    add_key(file, "alice", now_s=1.0)
    ring = KeyRing(file, "auto", supervisor_token="secret")
    key = ring.find("secret")
    assert key is not None
    assert (key.name, ring.find("other"), ring.is_required) == ("supervisor", None, True)


def test_keys_differ(file: Path) -> None:
    keys = {add_key(file, f"user{number}", now_s=1.0) for number in range(20)}
    assert len(keys) == 20


def test_concurrent_changes_are_not_lost(file: Path) -> None:
    names = [f"user{number}" for number in range(12)]
    threads = [
        threading.Thread(target=add_key, args=(file, name), kwargs={"now_s": 1.0}) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.name for each in read_keys(file)) == sorted(names)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n", "x" * 65, "é"])
def test_names_that_could_forge_a_log_are_refused(file: Path, name: str) -> None:
    with pytest.raises(BadInput, match="not a valid API key name"):
        add_key(file, name, now_s=1.0)
    assert not file.exists()


def test_names_are_unique_and_revoked_once(file: Path) -> None:
    add_key(file, "alice", now_s=1.0)
    with pytest.raises(BadInput, match="already exists"):
        add_key(file, "alice", now_s=1.0)
    revoke_key(file, "alice")
    with pytest.raises(BadInput, match="does not exist"):
        revoke_key(file, "alice")
    assert read_keys(file) == ()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"version": 2, "keys": []}', '{"version": 1, "keys": [{"name": "a"}]}',
        pytest.param("[" * 100000, id="nested"),
    ],
)  # fmt: skip
def test_invalid_file_is_not_overwritten(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(BadInput, match="cannot be read"):
        add_key(file, "alice", now_s=1.0)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("created_at", None), ("expires_at", "never"), ("requests_per_minute", "9"),
        ("tokens_per_minute", 0.5), ("concurrency", [1]), ("models", ""), ("models", [1]),
        ("requests_per_minute", 0), ("tokens_per_minute", -1), ("concurrency", 0),
    ],
)  # fmt: skip
def test_field_with_an_invalid_value_is_refused(file: Path, name: str, value: object) -> None:
    """Otherwise, each request with the key would fail, or could use all models."""
    add_key(file, "alice", now_s=1.0)
    content = json.loads(file.read_text())
    content["keys"][0][name] = value
    file.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="cannot be read"):
        read_keys(file)


def test_ring_finds_only_the_whole_key(file: Path) -> None:
    key = add_key(file, "alice", now_s=1.0)
    ring, _ = make_ring(file)
    found = ring.find(key)
    assert found is not None
    assert found.name == "alice"
    for other in (key[:-1], key + "x", key.upper(), hash_key(key), "", "\udcff"):
        assert ring.find(other) is None


def test_ring_reads_changes_at_most_once_per_second(file: Path) -> None:
    ring, clock = make_ring(file)
    assert not ring.is_required
    key = add_key(file, "alice", now_s=1.0)
    clock.now_s += 0.5
    assert ring.find(key) is None
    clock.now_s += 0.6
    assert ring.find(key) is not None
    assert ring.is_required
    revoke_key(file, "alice")
    clock.now_s += 1.1
    assert ring.find(key) is None


@pytest.mark.parametrize("is_deleted", [False, True])
def test_without_a_key_left_a_key_is_still_required(file: Path, is_deleted: bool) -> None:
    add_key(file, "alice", now_s=1.0)
    ring, clock = make_ring(file)
    assert ring.is_required
    if is_deleted:
        file.unlink()
    else:
        revoke_key(file, "alice")
    clock.now_s += 2
    assert ring.is_required


@pytest.mark.parametrize(("policy", "is_required"), [("auto", False), ("on", True), ("off", False)])
def test_policies_without_a_file(file: Path, policy: KeyPolicy, is_required: bool) -> None:
    assert make_ring(file, policy)[0].is_required is is_required


def test_file_that_is_deleted_before_the_first_request_still_requires_a_key(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_key(file, "alice", now_s=1.0)
    ring, _ = make_ring(file)
    file.unlink()
    assert ring.is_required
    assert f"{file} is missing; the gateway rejects all API keys." in caplog.messages


def test_restarted_process_requires_a_key_after_the_file_was_deleted(file: Path) -> None:
    marker = file.with_name("keys-required")
    assert not KeyRing(file, "auto", marker=marker).is_required
    add_key(file, "alice", now_s=1.0)
    KeyRing(file, "auto", marker=marker)
    file.unlink()
    assert KeyRing(file, "auto", marker=marker).is_required
    assert not KeyRing(file, "off", marker=marker).is_required


def test_marker_that_cannot_be_created_is_logged(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_key(file, "alice", now_s=1.0)
    ring = KeyRing(file, "auto", marker=file.parent / "missing" / "keys-required")
    assert ring.is_required
    (message,) = caplog.messages
    assert "keys-required cannot be created: No such file or directory" in message


def test_off_ignores_the_file(file: Path) -> None:
    add_key(file, "alice", now_s=1.0)
    assert not make_ring(file, "off")[0].is_required


def test_invalid_file_keeps_the_previous_keys(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = add_key(file, "alice", now_s=1.0)
    ring, clock = make_ring(file)
    assert ring.find(key) is not None
    file.write_text("{")
    clock.now_s += 2
    assert ring.find(key) is not None
    assert "the gateway continues to use the keys that it read before" in caplog.text


def test_problem_is_logged_again_after_the_file_was_deleted(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring, clock = make_ring(file)
    for _ in range(2):
        file.write_text("{")
        for _ in range(2):
            assert ring.find("key") is None
            clock.now_s += 2
        file.unlink()
        assert ring.find("key") is None
        clock.now_s += 2
    assert caplog.text.count("the gateway continues to use the keys") == 2


def test_unreadable_file_is_read_again(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A key that was revoked during the error must not remain valid."""
    key = add_key(file, "alice", now_s=1.0)
    ring, clock = make_ring(file)
    assert ring.find(key) is not None
    revoke_key(file, "alice")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", fail_to_read)
        for _ in range(3):
            clock.now_s += 2
            assert ring.find(key) is not None
    assert caplog.text.count("Input/output error; the gateway continues to use") == 1
    clock.now_s += 2
    assert ring.find(key) is None


def fail_to_read(*_: object, **__: object) -> str:
    raise OSError(errno.EIO, "Input/output error")


def test_unreadable_file_must_not_be_deleted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", fail_to_read)
    with pytest.raises(BadInput) as caught:
        read_keys(file)
    assert (caught.value.why, caught.value.next_step) == (
        "Input/output error",
        f"check the disk and the file permissions (`ls -l {file}`)",
    )


def test_invalid_file_at_the_start_accepts_no_one(file: Path) -> None:
    file.write_text("{")
    assert make_ring(file)[0].is_required


def test_expired_key_is_not_found(file: Path) -> None:
    key = add_key(file, "alice", now_s=1.0, expires_at=1010.0)
    ring, clock = make_ring(file)
    assert ring.find(key) is not None
    clock.now_s = 1010.0
    assert ring.find(key) is None


def test_file_has_a_version(file: Path) -> None:
    add_key(file, "alice", now_s=1.0)
    assert json.loads(file.read_text())["version"] == 1
