"""The server and the Triton models that `tllm load` and `tllm unload` select."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.triton.server import FakeTriton
from tests.samples.launch_plans import fake_plan
from trtllm_serve_cli.errors import BadInput, NoServer, TimedOut
from trtllm_serve_cli.launch.clusters.slurm_job import SlurmJob
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan, LaunchRequest
from trtllm_serve_cli.launch.server_state import (
    PLAN_FILE,
    ServerState,
    describe_supervisor,
    write_state,
)
from trtllm_serve_cli.launch.servers.control import (
    find_controlled,
    list_parts,
    load_models,
    unload_models,
)
from trtllm_serve_cli.launch.servers.running import RunningServer, read_server
from trtllm_serve_cli.paths import Home
from trtllm_serve_cli.repository.planning.placed_model import PlacedModel

PARTS = ("demo", "ensemble", "postprocessing", "preprocessing", "tensorrt_llm")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "engines")


def add(home: Home, **changes: object) -> LaunchPlan:
    plan = dataclasses.replace(fake_plan(home.servers), **changes)
    plan.directory.mkdir(parents=True)
    (plan.directory / PLAN_FILE).write_text(plan.to_json())
    write_state(plan.directory, describe_supervisor("ready"))
    return plan


def test_models_load_after_those_they_call(tmp_path: Path) -> None:
    plan = dataclasses.replace(fake_plan(tmp_path), models=("demo",), loading=PARTS)
    assert list_parts(plan, "demo") == (
        "tensorrt_llm", "preprocessing", "postprocessing", "demo", "ensemble",
    )  # fmt: skip
    assert list_parts(plan, "ensemble") == ("ensemble",)


def test_parts_of_one_of_several_models(tmp_path: Path) -> None:
    combined = tuple(
        PlacedModel(name, Path(f"/{name[0]}/x/{name}")) for name in ("a", "a_tensorrt_llm", "b")
    )
    plan = dataclasses.replace(fake_plan(tmp_path), models=("a", "b"), combined=combined)
    assert list_parts(plan, "a") == ("a_tensorrt_llm", "a")
    assert list_parts(plan, "b") == ("b",)


def test_server_is_found_by_any_of_its_models(home: Home) -> None:
    plan = add(home, models=("demo",), loading=PARTS, model_control_mode="explicit")
    add(home, models=("other",), loading=("other",))
    for name in ("demo", "ensemble"):
        assert find_controlled(home, name).directory == plan.directory


def test_server_without_explicit_mode_is_rejected(home: Home) -> None:
    plan = add(home, models=("demo",), loading=PARTS)
    with pytest.raises(BadInput, match="cannot load or unload demo") as raised:
        find_controlled(home, "demo")
    assert raised.value.why == (
        "loading and unloading require --model-control-mode explicit, but the server runs with "
        "--model-control-mode none"
    )
    assert raised.value.next_step == (
        f"restart the server with `tllm stop -u {plan.endpoint.http} && "
        "tllm start -m demo --model-control-mode explicit`"
    )


def test_suggested_restart_keeps_the_options_of_the_server(home: Home) -> None:
    options = {
        "http_port": 9100,
        "triton_args": ["--http-thread-count=16"],
        "openai": False,
        "timeout_s": 60.0,
        "trace_config": ["level=TIMESTAMPS", "rate=9"],
        "model_control_mode": "poll",
    }
    request = LaunchRequest(("demo",), (Path("/my repo"),), options)
    add(home, models=("demo", "my"), loading=PARTS, model_control_mode="poll", request=request)
    with pytest.raises(BadInput) as raised:
        find_controlled(home, "demo")
    assert raised.value.next_step.partition(" && ")[2] == (
        "tllm start -m demo --repo '/my repo' --http-port 9100 --no-openai --timeout 60.0 "
        "--trace-config level=TIMESTAMPS --trace-config rate=9 --model-control-mode explicit "
        "-- --http-thread-count=16`"
    )


def test_slurm_job_cannot_be_restarted_in_explicit_mode(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = add(home, models=("demo",), loading=PARTS)
    state = ServerState("ready", 0, 0.0)
    job = RunningServer(plan.directory, plan, state, SlurmJob("12", "RUNNING"))
    monkeypatch.setattr("trtllm_serve_cli.launch.servers.control.find_servers", lambda *_: [job])
    with pytest.raises(BadInput) as raised:
        find_controlled(home, "demo")
    assert raised.value.next_step == (
        "start a server without Slurm, for example with "
        "`tllm start -m demo --model-control-mode explicit`"
    )


def test_unknown_model_is_rejected(home: Home) -> None:
    with pytest.raises(NoServer):
        find_controlled(home, "demo")
    add(home, models=("demo",), loading=PARTS)
    with pytest.raises(BadInput, match="does not have a model named 'nope'"):
        find_controlled(home, "nope")


@pytest.mark.parametrize(
    ("change", "command", "what"),
    [(load_models, "load", "reloaded"), (unload_models, "unload", "unloaded")],
)
def test_model_with_requests_in_flight_times_out(
    home: Home, change: Callable[..., None], command: str, what: str
) -> None:
    labels = 'model="tensorrt_llm",version="1",request_type="active"'
    page = f"nv_trt_llm_request_metrics{{{labels}}} 2\n"
    with FakeTriton(metrics_pages=[page]) as triton:
        plan = add(home, models=("demo",), loading=PARTS, endpoint=triton.endpoint)
        with pytest.raises(TimedOut) as raised:
            change(read_server(plan.directory), "demo", 0.5, on_model=print)
    assert str(raised.value) == (
        f"demo was not {what}, because requests were still in flight after 0.5 s.\n"
        "Why: requests in flight: 2 in tensorrt_llm\n"
        f"Next: run `tllm {command} demo --timeout 1` to wait longer"
    )
