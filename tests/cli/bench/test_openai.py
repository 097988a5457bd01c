"""`tllm bench -i openai` with a fake server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.fakes.openai_server import FakeOpenAI, exact_length

SMALL = ("--num-requests", "4", "--warmup", "0")
KEY = "se-cret"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with FakeOpenAI(answer=exact_length) as fake:
        yield fake


@pytest.fixture
def tllm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tllm:
    return Tllm(monkeypatch, capsys)


def test_result_files_are_those_of_other_interfaces_without_the_key(
    server: FakeOpenAI, tllm: Tllm, tmp_path: Path
) -> None:
    server.api_key = KEY
    folder = tmp_path / "result"
    code, out, err = tllm(
        "bench", "end-to-end", "-i", "openai", "-u", server.url, "--api-key", KEY, "--stream",
        "--output", str(folder), "--slo", "ttft:p95<60s", *SMALL,
    )  # fmt: skip
    assert code == 0, err
    for words in ("Requests/Sec", "TTFT", "ITL", "TPOT"):
        assert words in out
    summary = json.loads((folder / "summary.json").read_text())
    (target,) = summary["targets"]
    assert (target["address"], target["name"], target["interface"], target["server_version"]) == (
        server.url, "org/demo", "openai", "0.9.1",
    )  # fmt: skip
    assert "messages" in target["inputs"]
    assert summary["token_counts"] == "server"
    files = sorted(each.name for each in folder.iterdir())
    assert {"summary.json", "requests.jsonl", "report.html"} <= set(files)
    assert all(KEY not in (folder / name).read_text() for name in files)


def test_token_ids_are_sent_as_completions(server: FakeOpenAI, tllm: Tllm) -> None:
    code, out, err = tllm(
        "bench", "token-norm-dist", "-i", "openai", "-u", server.url, "--json", "--workers", "2",
        "--concurrency", "2", "--output-mean", "5", "--output-stdev", "0", *SMALL,
    )  # fmt: skip
    assert code == 0, err
    assert "The vocabulary size is unknown" in err
    assert set(server.paths) == {"/v1/completions"}
    assert all(isinstance(body["prompt"][0], int) for body in server.bodies)
    assert all(body["ignore_eos"] for body in server.bodies)
    assert json.loads(out)["summary"]["num_output_tokens"] == 20


def test_several_models_are_measured_in_turns(server: FakeOpenAI, tllm: Tllm) -> None:
    code, out, _ = tllm(
        "bench", "end-to-end", "-i", "openai", "-u", server.url, "-m", "a", "-m", "b", "--json",
        "--api", "completions", *SMALL,
    )  # fmt: skip
    assert code == 0
    targets = json.loads(out)["targets"]
    assert [(each["name"], each["summary"]["num_completed"]) for each in targets] == [
        ("a", 2), ("b", 2),
    ]  # fmt: skip
    assert set(server.paths) == {"/v1/completions"}


def test_search_and_sweep_measure_the_server(server: FakeOpenAI, tllm: Tllm) -> None:
    options = ("end-to-end", "-i", "openai", "-u", server.url, "--json", *SMALL)
    code, out, _ = tllm("bench", "sweep", *options, "--concurrency", "1,2")
    assert (code, len(json.loads(out)["points"])) == (0, 2)
    limits = ("--slo", "latency:max<60s", "--max-rate", "2", "--min-rate", "2")
    code, _, err = tllm("bench", "search", *options, *limits)
    assert code == 0, err


def test_sweep_over_models_with_slashes_writes_a_report(
    server: FakeOpenAI, tllm: Tllm, tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    models = ("-m", "org/a", "-m", "org/b", "--output", str(folder))
    code, _, err = tllm(
        "bench", "sweep", "end-to-end", "-i", "openai", "-u", server.url, *models, *SMALL
    )
    assert code == 0, err
    assert sorted(each.name for each in folder.iterdir()) == ["org--a", "org--b", "report.html"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("token-norm-dist", "-i", "openai", "--api", "chat"), "does not accept token ids"),
        (("token-norm-dist", "-i", "openai", "--server-times"), "do not report server timings"),
        (("end-to-end", "--api", "chat"), "requires -i openai"),
        (("end-to-end", "--api-key", "x"), "requires -i openai"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_contradictions_are_wrong_usage(
    server: FakeOpenAI, tllm: Tllm, arguments: tuple[str, ...], words: str
) -> None:
    code, _, err = tllm("bench", *arguments, "-u", server.url)
    assert (code, words in err) == (2, True)
    assert server.bodies == []


def test_data_sets_require_a_tokenizer(server: FakeOpenAI, tllm: Tllm, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "go", "output_length": 3}\n')
    options = ("--dataset", str(file), "-i", "openai", "-u", server.url)
    code, _, err = tllm("bench", "dataset", *options)
    assert (code, "-i openai does not provide" in err) == (2, True)
    code, _, err = tllm("bench", "end-to-end", *options, "--warmup", "0")
    assert (code, server.bodies[-1]["messages"][0]["content"]) == (0, "go"), err


def test_failed_requests_have_the_exit_code_of_other_interfaces(
    server: FakeOpenAI, tllm: Tllm
) -> None:
    server.fails_after = 1
    code, _, err = tllm("bench", "end-to-end", "-i", "openai", "-u", server.url, *SMALL)
    assert (code, "http_429: slow down" in err) == (3, True)
