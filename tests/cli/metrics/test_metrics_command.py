"""Tests of the command `tllm metrics`."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.samples.launch_plans import fake_plan
from tests.samples.metrics_pages import OURS, PAGE
from trtllm_serve_cli.cli.main import main
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.server_state import describe_supervisor
from trtllm_serve_cli.launch.servers import running as running_servers
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.paths import Home

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        fake.metrics_pages = [PAGE]
        yield fake


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `tllm metrics` in 80 columns: exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run_metrics(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tllm", "metrics", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return (int(left.value.code or 0), *capsys.readouterr())

    return run_metrics


def test_screen_fits_80_columns(triton: FakeTriton, run: Run) -> None:
    code, out, err = run("-u", triton.endpoint.metrics)
    lines = [line.rstrip() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert max(map(len, lines)) <= 80
    for line in (
        " engine worker   up, 2 restarts",
        " requests        7 active, 4 scheduled, 1 in context, 3 waiting, 256 at most",
        " KV cache        ██████░░░░░░░░░░░░░░░░░░ 25 %, 250 of 1000 blocks of 32 tokens",
        " memory          cpu 3 MiB",
        " CPU             98 %",
        " memory          636 MiB of 24,106 MiB",
        " GPU 0           50 %, 33,379 MiB of 143,051 MiB, 350 W of 700 W",
    ):
        assert line in lines
    assert "ensemble failed: 2 canceled, 1 backend" in lines
    assert ["ensemble", "6", "3", "5", "0.50", "2.00"] in [line.split() for line in lines]


def test_json_has_the_same_data(triton: FakeTriton, run: Run) -> None:
    code, out, err = run("-u", triton.endpoint.metrics, "--json")
    summary = json.loads(out)
    assert (code, err) == (0, "")
    assert summary["gateway_metrics"] is None
    assert summary["models"][0]["failures"] == {"canceled": 2, "backend": 1}
    assert summary["engines"][0]["kv_fraction"] == 0.25


def test_raw_is_the_page(triton: FakeTriton, run: Run) -> None:
    assert run("-u", triton.endpoint.metrics, "--raw") == (0, PAGE, "")


def test_truncated_page_is_refused(triton: FakeTriton, run: Run) -> None:
    triton.metrics_pages = [PAGE[:500]]
    code, _, err = run("-u", triton.endpoint.metrics)
    assert code == 3
    assert "The metrics page is not valid." in err


def test_no_server(run: Run) -> None:
    code, _, err = run("-u", "127.0.0.1:1")
    assert code == 3
    assert "No server publishes metrics at 127.0.0.1:1." in err


def test_running_server_is_found(
    triton: FakeTriton, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SimpleNamespace(
        endpoint=triton.endpoint, models=("demo",), plan=SimpleNamespace(replicas=())
    )
    monkeypatch.setattr(running_servers, "find_running", lambda home, model: running)
    assert run("--raw")[1] == PAGE


@pytest.mark.parametrize("option", [("--raw",), ("--since", "x")])
def test_rank_must_be_selected_if_each_rank_is_a_server(
    triton: FakeTriton, run: Run, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]
) -> None:
    replica = SimpleNamespace(metrics="127.0.0.1:8005")
    running = SimpleNamespace(
        endpoint=triton.endpoint, models=("demo",), plan=SimpleNamespace(replicas=(replica,))
    )
    monkeypatch.setattr(running_servers, "find_running", lambda home, model: running)
    code, out, err = run(*option)
    assert (code, out, "requires a single server" in err) == (2, "", True)
    assert "-u 127.0.0.1:8005" in err


def test_metrics_of_the_gateway_are_named(
    triton: FakeTriton, run: Run, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(
        fake_plan(home.servers), endpoint=triton.endpoint, gateway=GatewayConfig((), port=9000)
    )
    server = RunningServer(plan.directory, plan, describe_supervisor("ready"))
    monkeypatch.setattr(running_servers, "list_servers", lambda home: [server])
    url, address = "http://127.0.0.1:9000/metrics", triton.endpoint.metrics
    other = address.replace("127.0.0.1", "localhost")
    for words in ((), ("-u", address), ("-u", address, "-u", other)):
        code, out, err = run(*words)
        assert (code, err) == (0, f"Metrics of the OpenAI-compatible API: {url}\n")
        assert url not in out
    assert json.loads(run("--json")[1])["gateway_metrics"] == url
    several = json.loads(run("--json", "-u", address, "-u", other)[1])
    assert [each["gateway_metrics"] for each in several] == [url, url]
    assert run("--raw") == (0, PAGE, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--raw", "--since", "x"),
        ("--since", "x", "--watch"),
        ("--since", "x", "-u", "a:1", "-u", "b:1"),
        ("--raw", "-u", "a:1", "-u", "b:1"),
        ("export",),
        ("export", "graphite", "-o", "x"),
        ("--raw", "--json"),
        ("--raw", "--watch"),
        ("-m", "x", "-u", "a:1"),
        ("--interval", "0"),
        ("--interval", "5"),
        ("--interval", "2", "--json"),
        ("-u", "a:1", "export", "prometheus", "-o", "x"),
        ("--watch", "export", "grafana", "-o", "x"),
        ("--interval", "5", "export", "grafana", "-o", "x"),
        ("export", "prometheus", "-u", "a:1", "-m", "demo", "-o", "x"),
        ("export", "grafana", "-u", "a:1", "-o", "x"),
        ("export", "grafana", "-m", "demo", "-o", "x"),
        ("export", "grafana", "--for", "5m", "-o", "x"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(
    run: Run, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments)[0] == 2
    assert not [*tmp_path.iterdir()]


def test_options_of_export_must_follow_it(run: Run) -> None:
    err = run("-u", "a:1", "export", "prometheus", "-o", "x")[2]
    assert "Put the options after `tllm metrics export`." in err


def test_since_a_saved_page_shows_rates(triton: FakeTriton, run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "before.prom"
    saved.write_text(OURS)
    os.utime(saved, (time.time() - 100, time.time() - 100))
    triton.metrics_pages = [OURS.replace("} 593\n", "} 1593\n")]
    code, out, _ = run("-u", triton.endpoint.metrics, "--since", str(saved), "--json")
    model = next(each for each in json.loads(out)["models"] if each["model"] == "demo")
    assert (code, round(model["tokens_per_s"])) == (0, 10)


def test_since_refuses_a_broken_page(triton: FakeTriton, run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "cut.prom"
    saved.write_text(PAGE[:500])
    code, _, err = run("-u", triton.endpoint.metrics, "--since", str(saved))
    assert code == 3
    assert "cut.prom could not be read as a metrics page." in err and "tllm metrics --raw >" in err


def test_own_models_show_tokens_and_latency(triton: FakeTriton, run: Run) -> None:
    triton.metrics_pages = [OURS]
    code, out, _ = run("-u", triton.endpoint.metrics)
    words = [line.split() for line in out.splitlines()]
    assert code == 0
    assert ["demo", "30", "3", "-", "-", "-"] in words
    assert ["demo", "3847", "593", "625", "925", "-", "-"] in words
    assert "demo failed: 2 cancelled, 1 rejected" in out
    assert "25 % of prompt blocks reused, 1 preemption " in out


def test_several_servers_have_a_row_each(triton: FakeTriton, run: Run) -> None:
    triton.metrics_pages = [OURS]
    other = triton.endpoint.metrics.replace("127.0.0.1", "localhost")
    code, out, err = run("-u", triton.endpoint.metrics, "-u", other, "-u", "127.0.0.1:1")
    lines = [line.split() for line in out.splitlines() if ":" in line]
    assert [line[3:9] for line in lines] == [["625", "-", "4", "3", "25", "%"]] * 2
    assert (code, err.count("Error:")) == (3, 1)


def test_several_servers_as_json(triton: FakeTriton, run: Run) -> None:
    other = triton.endpoint.metrics.replace("127.0.0.1", "localhost")
    code, out, _ = run("-u", triton.endpoint.metrics, "-u", other, "--json")
    assert (code, [each["server"] for each in json.loads(out)]) == (
        0, [triton.endpoint.metrics, other],
    )  # fmt: skip


def test_export_writes_what_prometheus_reads(run: Run, tmp_path: Path) -> None:
    words = ("export", "prometheus", "-u", "a:8002", "-u", "b:8002", "-o", str(tmp_path))
    code, out, _ = run(*words)
    assert code == 0
    assert [Path(line).name for line in out.split()] == ["prometheus.yml", "tllm-rules.yml"]
    assert "a:8002" in (tmp_path / "prometheus.yml").read_text()
    code, _, err = run(*words)
    assert code == 3 and "already exists" in err and "--force" in err


def test_export_of_a_dashboard_needs_no_server(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("export", "grafana", "-o", str(tmp_path))
    assert (code, json.loads(Path(out.strip()).read_text())["title"]) == (0, "tllm")


def test_watch_prints_lines_and_survives_the_server(triton: FakeTriton) -> None:
    command = [sys.executable, "-m", "trtllm_serve_cli.cli.main", "metrics", "--watch"]
    with subprocess.Popen(
        [*command, "--interval", "0.1", "-u", triton.endpoint.metrics],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        triton.metrics_pages = ["half a pa"]
        gap = process.stderr.readline()
        triton.metrics_pages = [PAGE.replace("} 7\n", "} 8\n")]
        again = next(line for line in process.stdout if "active 8" in line)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert "tensorrt_llm: active 7 waiting 3 KV 25 %" in first
    assert "The metrics page is not valid." in gap and "Retrying" in gap
    assert "KV 25 %" in again
    assert process.returncode == 130
