"""The options for starting a server, merged with the options that models declare."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.merged_options import choose_options


def test_overrides_win_over_declared_options():
    declared = {"a": {"grpc_port": 9000, "timeout_s": 60.0}, "b": {"grpc_port": 9000}}
    assert choose_options({"timeout_s": 5.0}, declared) == LaunchOptions(
        grpc_port=9000, timeout_s=5.0
    )


def test_conflicting_declared_ports_need_an_override():
    declared = {"a": {"http_port": 9000}, "b": {"http_port": 9001}}
    with pytest.raises(BadInput) as caught:
        choose_options({}, declared)
    assert caught.value.why == "launch.http_port is 9000 for a and 9001 for b"
    assert caught.value.next_step == "override the option, for example with --http-port 9000"
    assert choose_options({"http_port": 1}, declared).http_port == 1


@pytest.mark.parametrize(("first", "option"), [(True, "--"), (False, "--no-")])
def test_conflicting_switches_are_named_as_switches(first: bool, option: str) -> None:
    declared = {
        "a": {"mode": "mpi", "disable_spawn_processes": first},
        "b": {"mode": "mpi", "disable_spawn_processes": not first},
    }
    with pytest.raises(BadInput) as caught:
        choose_options({}, declared)
    assert (
        caught.value.next_step
        == f"override the option, for example with {option}disable-spawn-processes"
    )
    chosen = choose_options({"disable_spawn_processes": first}, declared)
    assert chosen.disable_spawn_processes is first


def test_declared_mpi_options_are_ignored_in_other_modes():
    declared = {"a": {"mode": "mpi", "world_size": 2, "oversubscribe": True}}
    assert choose_options({"mode": "local"}, declared) == LaunchOptions(mode="local")
    assert choose_options({}, declared).world_size == 2


def test_declared_mpi_options_apply_in_containers() -> None:
    declared = {"world_size": 2, "oversubscribe": True, "multi_model": True, "hostfile": "hosts"}
    chosen = choose_options({}, {"a": {"mode": "container", **declared}})
    assert (chosen.world_size, chosen.oversubscribe, chosen.multi_model) == (2, True, True)
    # A container has no other nodes.
    assert chosen.hostfile is None


def test_declared_image_is_ignored_in_other_modes():
    declared = {"a": {"mode": "container", "image": "mine:1"}}
    assert choose_options({"mode": "local"}, declared) == LaunchOptions(mode="local")
    assert choose_options({}, declared).image == "mine:1"
    assert choose_options({"mode": "auto"}, declared).image == "mine:1"


@pytest.mark.parametrize("options", [{"mode": "mpi"}, {}])
def test_image_is_rejected_in_other_modes(options: dict[str, str]):
    with pytest.raises(BadInput, match="--image requires container mode") as caught:
        choose_options({"image": "mine:1", **options}, {})
    assert caught.value.next_step == "add --mode container"


@pytest.mark.parametrize(
    ("chosen", "ports"),
    [
        ({}, (8000, 8001, 8002, 9000)),
        ({"http_port": 18000}, (18000, 18001, 18002, 19000)),
        ({"http_port": 65000}, (65000, 65001, 65002, 65003)),
        ({"http_port": 18000, "grpc_port": 7}, (18000, 7, 18002, 19000)),
        ({"grpc_port": 7}, (8000, 7, 8002, 9000)),
    ],
)
def test_default_ports_follow_the_http_port(chosen: dict[str, int], ports: tuple[int, ...]) -> None:
    options = choose_options(chosen, {})
    assert ports == (
        options.http_port, options.grpc_port, options.metrics_port, options.openai_port,
    )  # fmt: skip
    assert choose_options({}, {"m": chosen}) == options
