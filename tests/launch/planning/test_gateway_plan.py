from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.samples import MODEL
from tests.samples.lora_adapters import write_converted
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.access.keys import add_key, revoke_key
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedAdapter, ServedModel
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.planning.gateway_plan import (
    choose_num_processes,
    describe_missing_keys,
    plan_gateway,
)


def plan(keys_file: Path | None = None, **options: object) -> GatewayConfig:
    chosen = LaunchOptions(**options)  # type: ignore[arg-type]
    planned = plan_gateway(chosen, {"ensemble": MODEL}, [Endpoint()], Path("/state"), keys_file)
    assert planned is not None
    return planned


def test_options_become_the_configuration() -> None:
    planned = plan(
        Path("/home/keys.json"),
        openai_auth="on",
        openai_processes=4,
        cors_origin=("https://chat.example.com",),
        log_format="json",
        generation_config="off",
        openai_max_body_mib=2,
        openai_max_in_flight=3,
        openai_max_waiting=0,
        openai_receive_timeout_s=5.0,
        openai_send_timeout_s=6.0,
    )
    assert planned == GatewayConfig(
        (ServedModel("mine", "ensemble", Endpoint(), "/engines/mine", MODEL.created_at),),
        num_processes=4,
        server_directory="/state",
        keys_file="/home/keys.json",
        key_policy="on",
        cors_origins=("https://chat.example.com",),
        log_format="json",
        generation_config="off",
        max_body_bytes=2 << 20,
        max_in_flight=3,
        max_waiting=0,
        receive_timeout_s=5.0,
        send_timeout_s=6.0,
    )
    assert GatewayConfig.from_json(planned.to_json()) == planned


def test_clients_that_load_adapters_need_a_single_process(tmp_path: Path) -> None:
    options = LaunchOptions(runtime_lora_dir=tmp_path)
    planned = plan_gateway(options, {"ensemble": MODEL}, [Endpoint()], Path("/state"), num_cores=16)
    assert planned is not None
    assert (planned.num_processes, planned.runtime_lora_dir) == (1, str(tmp_path))


def test_adapters_belong_to_the_served_model(tmp_path: Path) -> None:
    poet = write_converted(tmp_path / "poet")
    planned = plan(lora=(f"poet={poet}",))
    assert planned.adapters == (ServedAdapter("poet", str(poet), "mine"),)
    assert GatewayConfig.from_json(planned.to_json()) == planned


@pytest.mark.parametrize(
    ("num_cores", "expected"), [(1, 1), (2, 1), (7, 1), (8, 2), (16, 4), (128, 4)]
)
def test_number_of_processes_follows_the_cores(num_cores: int, expected: int) -> None:
    assert choose_num_processes(num_cores) == expected


@pytest.mark.parametrize(
    ("policy", "state", "host", "message"),
    [
        ("auto", "missing", "127.0.0.1", ""),
        ("auto", "missing", "0.0.0.0", "anyone who can connect to 0.0.0.0:9000"),
        ("auto", "missing", "::", "anyone who can connect to [::]:9000"),
        ("auto", "one key", "0.0.0.0", ""),
        ("auto", "empty", "127.0.0.1", "rejects all requests"),
        ("on", "missing", "127.0.0.1", "rejects all requests"),
        ("on", "one key", "0.0.0.0", ""),
        ("off", "one key", "0.0.0.0", "anyone who can connect to 0.0.0.0:9000"),
        ("off", "one key", "127.0.0.1", ""),
    ],
)
def test_warnings_about_keys(
    tmp_path: Path, policy: str, state: str, host: str, message: str
) -> None:
    file = tmp_path / "keys.json"
    if state != "missing":
        add_key(file, "alice", now_s=1.0)
    if state == "empty":
        revoke_key(file, "alice")
    warning = describe_missing_keys(plan(file, openai_auth=policy, openai_host=host))
    assert (message in warning, bool(warning)) == (True, bool(message))


def test_invalid_key_file_is_refused_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        describe_missing_keys(plan(file))
