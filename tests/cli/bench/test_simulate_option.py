"""Tests of `tllm bench --simulate` and `tllm bench calibrate`, also in combination."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.samples.builds import ENGINE
from tests.samples.repositories import add_model
from trtllm_serve_cli.bench.report import result_json
from trtllm_serve_cli.build.engine import write_engine
from trtllm_serve_cli.cli.bench import search_command
from trtllm_serve_cli.cli.main import app
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput, TllmError, UnknownModel
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository
from trtllm_serve_cli.runtime.engines.sim.timing import Simulation, StepTiming

TIMING = StepTiming(0.02, prompt_token_s=1e-4, sequence_s=1e-4, kv_token_s=1e-7)
SMALL = ("--num-requests", "40", "--input-stdev", "60", "--stream")


def bench(*words: str) -> Any:
    return CliRunner().invoke(app, ("bench", *words))


def simulate(named: object, *words: str) -> Any:
    return bench("token-norm-dist", "--simulate", str(named), *SMALL, *words)


def summary(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout)["summary"])


@pytest.fixture
def timing(tmp_path: Path) -> Path:
    path = tmp_path / "timing.json"
    path.write_text(json.dumps(Simulation(TIMING).to_json()))
    return path


def _import(**options: Any) -> None:
    home = find_home()
    engine_dir = home.engines / "mine"
    engine_dir.mkdir(parents=True)
    engine = dataclasses.replace(ENGINE, path=engine_dir, kind="sim", details=Simulation(TIMING))
    write_engine(engine, engine_dir)
    (engine_dir / "simulation.json").write_text(json.dumps(Simulation(TIMING).to_json()))
    write_repository(
        plan_repository("mine", engine, ServingOptions(**options)), home.models / "mine"
    )


def test_simulation_of_a_timing_file(timing: Path) -> None:
    result = simulate(timing, "--concurrency", "1")
    assert result.exit_code == 0
    assert "TTFT" in result.stdout
    value = json.loads(simulate(timing, "--concurrency", "1", "--json").stdout)
    assert value["summary"]["num_completed"] == 40
    assert value["summary"]["itl"]["p50_ms"] == pytest.approx(20.1, abs=0.1)
    assert value["vocab_size"] == {"used": 1000, "source": "fallback"}
    assert value["targets"][0]["address"] == f"virtual clock, 1 x {timing}"


def test_same_seed_gives_the_same_result(timing: Path) -> None:
    runs = [summary(simulate(timing, "--request-rate", "20", "--json")) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("workload", "why", "next_step"),
    [
        (
            "identity",
            "a simulated engine accepts only one prompt per request",
            "pass --batch-size 1, or omit --simulate",
        ),
        (
            "end-to-end",
            "a simulated engine accepts only token ids",
            "run another workload, such as token-norm-dist, or omit --simulate",
        ),
    ],
)
def test_workloads_without_token_prompts_are_refused(
    timing: Path, workload: str, why: str, next_step: str
) -> None:
    result = bench(workload, "--simulate", str(timing))
    assert isinstance(result.exception, BadInput)
    assert "cannot be simulated" in result.exception.what
    assert (result.exception.why, result.exception.next_step) == (why, next_step)


def test_identity_with_one_prompt_per_request_is_simulated(timing: Path) -> None:
    words = ("-b", "1", "-s", "6", "-o", "3", "--num-requests", "4", "--simulate", str(timing))
    found = summary(bench("identity", *words, "--json"))
    assert found["num_completed"] == 4
    assert (found["num_input_tokens"], found["num_output_tokens"]) == (24, 12)


def test_conversations_and_prefixes_are_simulated(timing: Path) -> None:
    talks = ("multi-turn", "--turns", "3", "--num-requests", "5", "--concurrency", "2")
    alike = ("shared-prefix", "--num-requests", "5", "--request-rate", "3", "--slo", "latency<9s")
    for words, number in ((talks, 15), (alike, 5)):
        found = summary(bench(*words, "--simulate", str(timing), "--json"))
        assert found["num_completed"] == number


@pytest.mark.parametrize(
    "words",
    [
        ("-u", "localhost:1"),
        ("-m", "mine"),
        ("-i", "http"),
        ("--metrics-url", "localhost:1"),
        ("--tls-ca", "ca.pem"),
        ("--warmup", "5"),
        ("--workers", "2"),
        ("--timeout", "1"),
        ("--server-times",),
        ("--sample-interval", "2"),
        ("--tls-ca", "ca.pem"),
    ],
    ids=lambda words: words[0],
)
def test_server_options_are_wrong_usage(timing: Path, words: tuple[str, ...]) -> None:
    result = simulate(timing, *words)
    assert result.exit_code == 2
    lines = " ".join(result.stderr.replace("│", " ").split())
    assert f"Omit the options that require a server: {words[0]}." in lines


def test_more_replicas_have_a_shorter_ttft(timing: Path) -> None:
    one = summary(simulate(timing, "--json"))
    four = summary(simulate(timing, "--json", "--replicas", "4"))
    assert four["ttft"]["p50_ms"] < one["ttft"]["p50_ms"] / 2


def test_imported_model_is_simulated_with_its_parameters() -> None:
    _import(max_batch_size=1)
    found = summary(simulate("mine", "--json"))
    # Requests run one after the other: the last one waits for all others.
    assert found["ttft"]["max_ms"] > 39 * 20 * 15


def test_error_for_a_real_engine_names_calibrate() -> None:
    add_model(find_home(), "real")
    result = simulate("real")
    assert isinstance(result.exception, BadInput)
    assert "tllm bench calibrate" in result.exception.next_step


def test_unknown_simulation_is_refused() -> None:
    result = simulate("nothing")
    assert isinstance(result.exception, UnknownModel)
    assert "'nothing' cannot be simulated." in result.exception.what


def test_calibrated_run_is_simulated_again(timing: Path, tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("alone", "many")]
    for folder, number in zip(folders, ("1", "16"), strict=True):
        assert simulate(timing, "--concurrency", number, "--output", folder).exit_code == 0
    found = tmp_path / "found.json"
    result = bench("calibrate", *folders, "-o", str(found))
    assert result.exit_code == 0, result.output
    assert "Tokens/s" in result.stdout
    assert f"--simulate {found}" in result.stderr
    known, again = (
        summary(simulate(each, "--json", "--concurrency", "8")) for each in (timing, found)
    )
    assert again["itl"]["p50_ms"] == pytest.approx(known["itl"]["p50_ms"], rel=0.02)


def test_points_of_a_sweep_are_calibrated_together(timing: Path, tmp_path: Path) -> None:
    words = ("--simulate", str(timing), *SMALL, "--concurrency", "1,16")
    bench("sweep", "token-norm-dist", *words, "--output", str(tmp_path / "sweep"))
    value = json.loads(bench("calibrate", str(tmp_path / "sweep"), "--json").stdout)
    assert {each["run"] for each in value["comparisons"]} == {"concurrency-1", "concurrency-16"}


def test_calibration_refuses_a_result_without_requests(timing: Path, tmp_path: Path) -> None:
    simulate(timing, "--output", str(tmp_path / "run"))
    (tmp_path / "run" / "requests.jsonl").write_text("")
    result = bench("calibrate", str(tmp_path / "run"))
    assert isinstance(result.exception, BadInput)
    assert "No completed request in run generated a token" in result.exception.what


def test_calibration_refuses_a_folder_without_a_result(tmp_path: Path) -> None:
    result = bench("calibrate", str(tmp_path))
    assert isinstance(result.exception, BadInput)
    assert "neither the folder nor its subfolders contain summary.json" in result.exception.why


def test_calibration_json_has_timing_and_fit(timing: Path, tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("alone", "many")]
    for folder, number in zip(folders, ("1", "16"), strict=True):
        simulate(timing, "--concurrency", number, "--output", folder)
    value = json.loads(bench("calibrate", *folders, "--json").stdout)
    assert value["timing"]["step_s"] == pytest.approx(0.02, rel=0.02)
    assert {"run", "figure", "measured", "simulated", "deviation"} == set(value["comparisons"][0])


def test_calibration_reads_the_limits_of_the_measured_model(timing: Path, tmp_path: Path) -> None:
    add_model(find_home(), "real")
    folder = str(tmp_path / "run")
    simulate(timing, "--request-rate", "10", "--output", folder, "--num-requests", "100")
    value = json.loads(bench("calibrate", folder, "-m", "real", "--json").stdout)
    assert value["limits"]["max_batch_size"] == 64
    assert value["limits"]["max_tokens_in_paged_kv_cache"] == 64 * 512


def test_calibration_refuses_a_run_with_too_little_data(timing: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    simulate(timing, "--concurrency", "1", "--output", folder)
    result = bench("calibrate", folder)
    assert isinstance(result.exception, BadInput)
    assert "--concurrency 32" in result.exception.next_step


def test_calibration_refuses_a_missing_output_folder(timing: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    simulate(timing, "--request-rate", "10", "--output", folder, "--num-requests", "100")
    result = bench("calibrate", folder, "-o", str(tmp_path / "no" / "timing.json"))
    assert isinstance(result.exception, BadInput)
    assert "cannot be written" in result.exception.what


def test_calibration_does_not_overwrite_a_result(timing: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulate(timing, "--request-rate", "10", "--output", str(folder), "--num-requests", "100")
    before = (folder / "summary.json").read_bytes()
    result = bench("calibrate", str(folder), "-o", str(folder / "summary.json"))
    assert isinstance(result.exception, BadInput)
    assert "is a file of a benchmark result" in result.exception.what
    assert (folder / "summary.json").read_bytes() == before


def test_csv_file_may_be_in_the_output_folder(timing: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = simulate(timing, "--output", str(folder), "--op-stats-csv", str(folder / "stats.csv"))
    assert result.exit_code == 0, result.output
    assert {"summary.json", "report.html", "stats.csv"} <= {each.name for each in folder.iterdir()}


@pytest.mark.parametrize("place", [".", "run", "run/summary.json", "run/report.html"])
def test_csv_file_must_differ_from_the_result_files(
    timing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    result = simulate(timing, "--output", "run", "--op-stats-csv", f"../new/{place}")
    assert result.exit_code == 2
    assert not [*Path().iterdir()]


def test_ramp_that_covers_the_run_is_refused(timing: Path) -> None:
    for group, load in (
        ((), ("--request-rate", "20", "--ramp", "5", "--duration", "5")),
        (("sweep",), ("--concurrency", "1,2", "--ramp", "5", "--duration", "3")),
        (("search",), ("--slo", "latency<9s", "--ramp", "5", "--max-rate", "10000")),
    ):
        words = ("token-norm-dist", "--simulate", str(timing), *load)
        result = bench(*group, *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--ramp must be shorter than the duration of the run" in " ".join(
            result.stderr.split()
        )


def test_benchmark_without_measured_requests_fails(timing: Path, tmp_path: Path) -> None:
    words = ("--request-rate", "20", "--ramp", "60", "--output", str(tmp_path / "run"))
    result = simulate(timing, *words)
    assert isinstance(result.exception, BadInput)
    assert result.exception.what == "No request was measured."
    assert result.exception.why == "all 40 requests were due during the ramp"
    assert (tmp_path / "run" / "summary.json").exists()


def test_sweep_is_simulated(timing: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = ("--simulate", str(timing), *SMALL, "--concurrency", "1,8", "--repeat", "2")
    result = bench("sweep", "token-norm-dist", *words, "--output", str(folder))
    assert result.exit_code == 0, result.output
    before, after = (str(folder / name) for name in ("concurrency-1", "concurrency-8"))
    value = bench("compare", before, after, "--allow-different", "--json")
    changes = {change["measure"]: change for change in json.loads(value.stdout)["changes"]}
    assert changes["output_tokens_per_s"]["verdict"] == "better"
    assert changes["itl:p50"]["verdict"] == "worse"


def test_sweep_prints_the_objectives_of_each_load(timing: Path) -> None:
    words = ("--simulate", str(timing), *SMALL, "--concurrency", "1,8")
    objectives = ("--slo", "ttft:p90<1s", "--slo", "itl:p90<1ms")
    result = bench("sweep", "token-norm-dist", *words, *objectives)
    lines = [line.split() for line in result.stdout.splitlines()]
    start = next(number for number, line in enumerate(lines) if "Objective" in line)
    assert lines[start - 1] == []
    assert [(*line[:-3], line[-3], line[-1]) for line in lines[start + 1 :]] == [
        *(("1", "in", "flight", "0.00", "ttft:p90<1000ms", "yes"), ("itl:p90<1ms", "no")),
        *(("8", "in", "flight", "0.00", "ttft:p90<1000ms", "yes"), ("itl:p90<1ms", "no")),
    ]


def test_search_is_simulated(timing: Path) -> None:
    words = ("--simulate", str(timing), "--stream", "--num-requests", "100", "--precision", "20")
    found = bench("search", "token-norm-dist", *words, "--slo", "latency:p90<1s", "--json")
    result = json.loads(found.stdout)
    assert result["ending"] == "found"
    assert result["probes"][0]["is_met"]
    assert result["interval"][0] <= result["rate"] < result["interval"][1]


def test_search_ends_if_every_rate_meets_the_objective(timing: Path) -> None:
    words = ("--simulate", str(timing), "--num-requests", "10", "--max-runs", "1")
    found = bench("search", "token-norm-dist", *words, "--slo", "latency:p90<1000s", "--json")
    result = json.loads(found.stdout)
    assert (result["ending"], result["rate"]) == ("all_met", 1000)


def test_simulated_run_at_a_high_rate_is_short(
    timing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_command, "MAX_SIMULATED", 300)
    words = ("--simulate", str(timing), "--input-mean", "1", "--output-mean", "1")
    rates = ("--min-rate", "600", "--max-rate", "600", "--max-runs", "1")
    folder = tmp_path / "search"
    objective = ("--slo", "latency:p90<1000s", "--output", str(folder))
    bench("search", "token-norm-dist", *words, *rates, *objective)
    settings = json.loads((folder / "rate-600" / "summary.json").read_text())["settings"]
    assert settings["duration_s"] == 0.5


each_benchmark = pytest.mark.parametrize(
    "words",
    [
        ("token-norm-dist", *SMALL),
        ("sweep", "token-norm-dist", *SMALL, "--concurrency", "1,2"),
        ("search", "token-norm-dist", *SMALL, "--slo", "latency:p90<60s", "--max-rate", "2"),
    ],
    ids=lambda words: words[0],
)


@each_benchmark
def test_closed_pipe_keeps_the_result_files(
    timing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def show_json(_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(output, "show_json", show_json)
    folder = tmp_path / "result"
    result = bench(*words, "--simulate", str(timing), "--json", "--output", str(folder))
    assert (folder / "report.html").exists()
    assert result.stderr.endswith(f"Result: {folder}\nReport: {folder / 'report.html'}\n")


@each_benchmark
def test_disk_that_fills_during_the_benchmark_keeps_the_figures(
    timing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def write_result(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/data/result")

    monkeypatch.setattr(result_json, "write_result", write_result)
    options = ("--simulate", str(timing), "--json", "--output", str(tmp_path / "result"))
    result = bench(*words, *options)
    assert json.loads(result.stdout)
    assert str(result.exception) == (
        "The result files could not be written.\n"
        "Why: No space left on device (/data/result)\n"
        "Next: copy the result above, then free disk space or choose another folder before the "
        "next benchmark"
    )


def test_full_disk_of_the_csv_file_keeps_the_figures(timing: Path) -> None:
    result = simulate(timing, "--op-stats-csv", "/dev/full")
    assert "Requests/Sec" in result.stdout
    assert isinstance(result.exception, TllmError)
    assert result.exception.why == "No space left on device"
