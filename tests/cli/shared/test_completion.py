"""Shell completion, as bash calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Tllm
from tests.samples.repositories import add_model
from trtllm_serve_cli.cli.shared.completion import completion
from trtllm_serve_cli.launch.server_state import PLAN_FILE, ServerState, write_state
from trtllm_serve_cli.paths import find_home


@pytest.fixture
def complete(home_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Return a function that completes the last word of a command line."""
    home = find_home()
    add_model(home, "mine")
    for port, model, phase in ((8000, "served", "ready"), (8100, "stopped", "stopped")):
        server = home.servers / str(port)
        server.mkdir(parents=True)
        (server / PLAN_FILE).write_text(
            json.dumps(
                {
                    "models": [model],
                    "endpoint": {
                        "http": f"127.0.0.1:{port}",
                        "grpc": f"127.0.0.1:{port + 1}",
                        "metrics": f"127.0.0.1:{port + 2}",
                    },
                }
            )
        )
        write_state(server, ServerState(phase, supervisor_pid=0, supervisor_started_at=0.0))
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\nfor n in 0 1; do echo $n, NVIDIA H200, 143771, N/A; done\n")
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tllm = Tllm(monkeypatch, capsys)

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_TLLM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"tllm {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(f"tllm {line}".split(" ")) - 1))
        code, out, err = tllm()
        assert (code, err) == (0, "")
        return out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sho", ["show"]),
        ("show ", ["mine"]),
        ("show -m ", ["mine"]),
        ("start ", ["mine"]),
        ("start -m m", ["mine"]),
        ("stop ", ["served"]),
        ("stop sto", []),
        ("infer -m ", ["served"]),
        ("import llama-2-7b", ["llama-2-7b", "llama-2-7b-chat"]),
        ("run mi", ["mine", "mistral-7b", "mistral-7b-instruct"]),
        ("set mi", ["mine"]),
        ("set mine enable_kv", ["enable_kv_cache_reuse="]),
        ("show no-such", []),
        ("stop -u ", ["127.0.0.1:8000"]),
        ("logs -u 127.0.0.1:81", []),
        ("infer -u ", ["127.0.0.1:8000", "127.0.0.1:8001"]),
        ("bench token-norm-dist -u ", ["127.0.0.1:8000", "127.0.0.1:8001"]),
        ("gateway -u ", ["127.0.0.1:8001"]),
        ("metrics -u ", ["127.0.0.1:8002"]),
        ("start --gpus ", ["0", "1"]),
        ("start --gpus 1,", ["1,0"]),
    ],
)
def test_words_are_completed(complete, line: str, words: list[str]) -> None:
    found = complete(line)
    assert set(words) <= set(found) and bool(found) == bool(words)


def test_error_results_in_no_suggestion(complete) -> None:
    (find_home().servers / "8000" / PLAN_FILE).write_text("{")
    assert complete("stop ") == []


def test_completion_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    @completion
    def noisy() -> list[str]:
        print("a warning")
        return ["word"]

    assert (noisy("w"), capsys.readouterr()) == (["word"], ("", ""))


def test_completion_is_installed_for_the_named_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tllm = Tllm(monkeypatch, capsys)
    code, out, _ = tllm("--install-completion", "zsh")
    assert (code, "zsh completion installed" in out) == (0, True)
    assert (tmp_path / ".zfunc" / "_tllm").exists() and not (tmp_path / ".bashrc").exists()
    assert "#compdef tllm" in tllm("--show-completion", "zsh")[1]
    code, _, err = tllm("--install-completion", "csh")
    assert (code, "Pass one of bash, zsh, fish" in err) == (2, True)
