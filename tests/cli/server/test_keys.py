from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from trtllm_serve_cli.cli.server.keys import parse_duration
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.access.keys import hash_key, read_keys
from trtllm_serve_cli.paths import find_home


@pytest.fixture
def tllm(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tllm:
    return Tllm(monkeypatch, capsys)


def test_key_is_printed_once_and_alone_on_stdout(tllm: Tllm) -> None:
    code, out, err = tllm("keys", "add", "alice")
    key = out.rstrip("\n")
    assert (code, out) == (0, f"{key}\n")
    assert "now requires an API key" in err
    assert key not in err
    file = find_home().keys
    assert [each.hash for each in read_keys(file)] == [hash_key(key)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "now requires" not in tllm("keys", "add", "bob")[2]


def test_list_shows_limits_but_no_hash(tllm: Tllm) -> None:
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "9000", "--concurrency", "4")
    models = ("--models", "a,b", "--models", "c", "--expires-in", "90d")
    key = json.loads(tllm("keys", "add", "alice", *limits, *models, "--json")[1])["key"]
    tllm("keys", "add", "bob")
    code, out, _ = tllm("keys", "list")
    header, alice, bob = (line.split() for line in out.splitlines())
    assert code == 0
    assert (header[0], alice[0], alice[3:]) == ("name", "alice", ["60", "9000", "4", "a,b,c"])
    assert bob[2:] == ["-", "-", "-", "-", "all"]
    assert hash_key(key) not in out
    listed = json.loads(tllm("keys", "list", "--json")[1])["keys"]
    assert listed[0]["models"] == ["a", "b", "c"]
    assert listed[0]["expires"] > listed[0]["created"]
    assert "hash" not in listed[0]


def test_key_with_the_longest_duration_and_blanks_between_models_is_listed(tllm: Tllm) -> None:
    tllm("keys", "add", "alice", "--models", "a, , b", "--expires-in", "999999d")
    code, out, _ = tllm("keys", "list", "--json")
    assert (code, json.loads(out)["keys"][0]["models"]) == (0, ["a", "b"])


def test_revoked_keys_are_gone_and_the_last_one_is_explained(tllm: Tllm) -> None:
    tllm("keys", "add", "alice")
    tllm("keys", "add", "bob")
    assert tllm("keys", "revoke", "alice") == (0, "", "Revoked alice.\n")
    assert "rejects all requests" in tllm("keys", "revoke", "bob")[2]
    assert tllm("keys", "list") == (0, "", "No API key exists. Next: tllm keys add NAME\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a b"), "'a b' is not a valid API key name."),
        (("add", "a", "--expires-in", "soon"), "'soon' is not a valid duration."),
        (("add", "a", "--models", ""), "--models does not contain a model name."),
        (("revoke", "nope"), "The API key 'nope' does not exist."),
    ],
)
def test_user_errors_exit_with_3(tllm: Tllm, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = tllm("keys", *arguments)
    assert (code, out, message in err) == (3, "", True)
    assert not find_home().keys.exists()


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("12h", 43200), ("90d", 7776000)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "d", "0d", "-1d", "1.5h", "10", "10s", "²d", "1000000d", "9" * 5000 + "d"]
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(BadInput):
        parse_duration(text)
