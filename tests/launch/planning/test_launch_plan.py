"""Launch plans, compared as a whole."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launch.samples import EMBEDDED, MODEL, SYSTEM
from trtllm_serve_cli.client.endpoint import Endpoint, Tls
from trtllm_serve_cli.errors import BadInput, MissingPart
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan, LaunchRequest
from trtllm_serve_cli.launch.planning.server_plan import plan_launch
from trtllm_serve_cli.launch.topology.ranks import plan_ranks
from trtllm_serve_cli.launch.triton.triton_install import TritonInstallation
from trtllm_serve_cli.repository.model.store import ImportedModel
from trtllm_serve_cli.repository.planning.placed_model import PlacedModel

VENV_BIN = str(Path(sys.prefix) / "bin")


def plan(
    triton: TritonInstallation = EMBEDDED, model: ImportedModel = MODEL, **changes
) -> LaunchPlan:
    chosen = {k: v for k, v in changes.items() if hasattr(LaunchOptions, k)}
    options = LaunchOptions(**{"openai": False, **chosen})
    arguments = {"libpython_dir": "/py/lib", "environ": {"PATH": "/usr/bin"}} | {
        key: value for key, value in changes.items() if not hasattr(LaunchOptions, key)
    }
    return plan_launch(
        [model], triton, options, servers=Path("/servers"), token="secret", **arguments
    )


def test_embedded_triton_compared_whole() -> None:
    assert plan() == LaunchPlan(
        argv=(
            "/wheel/bin/tritonserver",
            "--model-repository=/my models/mine",
            "--model-control-mode=none",
            "--model-load-thread-count=5",
            "--exit-timeout-secs=86400",
            "--http-address=127.0.0.1",
            "--http-port=8000",
            "--grpc-address=127.0.0.1",
            "--grpc-port=8001",
            "--metrics-address=127.0.0.1",
            "--metrics-port=8002",
            "--http-restricted-api=shared-memory,model-repository,trace,logging:tllm-token=secret",
            "--grpc-restricted-protocol="
            "shared-memory,model-repository,trace,logging:tllm-token=secret",
            "--allow-sagemaker=false",
            "--allow-vertex-ai=false",
            "--allow-gpu-metrics=false",
            "--log-verbose=0",
            "--pinned-memory-pool-byte-size=0",
            "--backend-directory=/servers/8000/backends",
            "--disable-auto-complete-config",
            "--backend-config=python,shm-region-prefix-name=tllm-8000-2bb80d53-",
        ),
        environ={"PATH": f"{VENV_BIN}:/usr/bin", "LD_LIBRARY_PATH": "/py/lib"},
        directory=Path("/servers/8000"),
        repository=Path("/my models/mine"),
        models=("mine",),
        text_models=("mine",),
        loading=MODEL.models,
        endpoint=Endpoint("127.0.0.1:8001", "127.0.0.1:8000", "127.0.0.1:8002", "secret"),
        backends={
            "backends/python/libtriton_python.so": "/wheel/python/libtriton_python.so",
            "backends/python/triton_python_backend_utils.py":
                "/wheel/python/triton_python_backend_utils.py",
            "backends/python/stub": "/wheel/3.11/stub",
        },
    )  # fmt: skip


COMBINED = (
    PlacedModel("mine", Path("/my models/mine/mine"), {"parameters.x": "mine_tensorrt_llm"}),
    PlacedModel("mine_ensemble", Path("/my models/mine/ensemble"), {"name": "mine_ensemble"}),
    PlacedModel("other", Path("/others/other/other")),
)


def plan_two(**changes) -> LaunchPlan:
    other = dataclasses.replace(MODEL, name="other", path=Path("/others/other"), **changes)
    options, servers = LaunchOptions(), Path("/servers")
    return plan_launch(
        [MODEL, other], EMBEDDED, options, servers=servers, token="secret", combined=COMBINED
    )


def test_several_models_are_served_from_a_combined_repository() -> None:
    made = plan_two()
    assert (made.repository, made.models, made.loading, made.combined) == (
        Path("/servers/8000/models"),
        ("mine", "other"),
        ("mine", "mine_ensemble", "other"),
        COMBINED,
    )
    assert "--model-repository=/servers/8000/models" in made.argv
    assert made.repositories == (Path("/my models/mine"), Path("/others/other"))


def test_triton_names_have_a_prefix_only_with_several_models() -> None:
    assert plan_two().triton_name("mine", "tensorrt_llm") == "mine_tensorrt_llm"
    assert plan_two().triton_name("mine", "mine") == "mine"
    assert plan().triton_name("mine", "tensorrt_llm") == "tensorrt_llm"
    assert plan().repositories == (Path("/my models/mine"),)


def test_text_model_of_the_llmapi_layout_has_the_prefix() -> None:
    made = plan_two(layout="llmapi", models=("tensorrt_llm",))
    assert made.text_models == ("mine", "other_tensorrt_llm")


def test_description_of_several_models() -> None:
    assert plan_two().describe().splitlines()[:4] == [
        "Serve mine, other from /servers/8000/models",
        "  mine           /my models/mine/mine, parameters.x: mine_tensorrt_llm",
        "  mine_ensemble  /my models/mine/ensemble, name: mine_ensemble",
        "  other          /others/other/other",
    ]


def test_plan_of_several_models_is_read_back_as_it_was_written() -> None:
    assert LaunchPlan.from_json(plan_two().to_json()) == plan_two()


def test_system_triton_brings_its_own_backends_and_environment() -> None:
    made = plan(SYSTEM)
    assert (made.argv[0], made.environ, made.backends) == (str(SYSTEM.binary), {}, {})
    assert not [word for word in made.argv if word.startswith("--backend-directory")]


def test_gpu_enables_its_metrics_and_pinned_memory() -> None:
    argv = plan(has_gpu=True).argv
    assert "--allow-gpu-metrics=true" in argv
    assert "--pinned-memory-pool-byte-size=0" not in argv


def test_options_reach_the_plan() -> None:
    ports = {"http_port": 1, "grpc_port": 2, "metrics_port": 3}
    made = plan(host="0.0.0.0", timeout_s=5.0, log_verbose=2, **ports)
    assert made.endpoint == Endpoint("127.0.0.1:2", "127.0.0.1:1", "127.0.0.1:3", "secret")
    assert made.ports == {"HTTP": 1, "gRPC": 2, "metrics": 3}
    assert (made.timeout_s, made.exit_timeout_s) == (5.0, 30)
    assert {"--http-address=0.0.0.0", "--log-verbose=2"} < set(made.argv)
    assert made.directory == Path("/servers/1")


@pytest.mark.parametrize(
    ("libpython_dir", "before", "after"),
    [
        ("/py/lib", {}, {"LD_LIBRARY_PATH": "/py/lib"}),
        ("/py/lib", {"LD_LIBRARY_PATH": "/x"}, {"LD_LIBRARY_PATH": "/py/lib:/x"}),
        ("", {"LD_LIBRARY_PATH": "/x"}, {}),
    ],
)
def test_library_path_of_the_user_is_kept(libpython_dir: str, before, after) -> None:
    made = plan(libpython_dir=libpython_dir, environ={"PATH": "/usr/bin", **before})
    assert made.environ == {"PATH": f"{VENV_BIN}:/usr/bin", **after}


def test_ports_that_clash() -> None:
    with pytest.raises(BadInput) as raised:
        plan(http_port=8001)
    assert str(raised.value) == (
        "The ports 8001, 8001, 8002 are not distinct.\n"
        "Why: HTTP, gRPC, metrics and the OpenAI-compatible API each need a separate port\n"
        "Next: set --http-port, --grpc-port, --metrics-port and --openai-port to different ports"
    )


def test_localhost_is_the_loopback_address() -> None:
    assert plan(host="localhost") == plan()


@pytest.mark.parametrize("host", ["::1", "node-a", ""])
def test_host_that_is_not_an_ipv4_address_is_rejected(host: str) -> None:
    with pytest.raises(BadInput, match=f"The server cannot listen on '{host}'"):
        plan(host=host)


def test_token_is_not_in_the_output() -> None:
    made = plan()
    assert "secret" not in made.describe()
    assert "secret" not in json.dumps(made.as_dict(), default=str)


def test_description_is_ready_to_paste() -> None:
    lines = plan().describe().splitlines()
    assert lines[:5] == [
        "Serve mine from /my models/mine",
        "on 127.0.0.1:8000 (HTTP), 127.0.0.1:8001 (gRPC), 127.0.0.1:8002 (metrics):",
        f"  PATH={VENV_BIN}:/usr/bin LD_LIBRARY_PATH=/py/lib \\",
        "  /wheel/bin/tritonserver \\",
        "  '--model-repository=/my models/mine' \\",
    ]
    assert lines[-1] == "  --backend-config=python,shm-region-prefix-name=tllm-8000-2bb80d53-"


def test_description_without_changes_to_the_environment() -> None:
    assert plan(SYSTEM).describe().splitlines()[2] == f"  {SYSTEM.binary} \\"


@given(st.text(), st.lists(st.text()), st.dictionaries(st.text(), st.text()), st.floats(0, 1e6))
def test_plan_is_read_back_as_it_was_written(token, words, environ, timeout_s) -> None:
    made = dataclasses.replace(
        plan(), argv=tuple(words), environ=environ, timeout_s=timeout_s,
        endpoint=Endpoint(restricted_token=token),
    )  # fmt: skip
    assert LaunchPlan.from_json(made.to_json()) == made


def test_text_model_of_the_llmapi_layout() -> None:
    made = plan(model=dataclasses.replace(MODEL, layout="llmapi", models=("tensorrt_llm",)))
    assert (made.models, made.text_models) == (("mine",), ("tensorrt_llm",))


@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({"engine_kind": "tensorrt"}, "tensorrtllm"),
        ({"engine_kind": "vllm", "layout": "vllm"}, "vllm"),
    ],
)
def test_backend_that_only_containers_have(changes: dict[str, str], backend: str) -> None:
    model = dataclasses.replace(MODEL, **changes)
    assert plan(SYSTEM, model).models == ("mine",)
    with pytest.raises(MissingPart) as raised:
        plan(model=model)
    assert str(raised.value) == (
        "The Triton installation in the wheel cannot serve mine.\n"
        f"Why: the model needs Triton's {backend} backend, which only container images include\n"
        "Next: add --mode container, or --container-image IMAGE for a Slurm job"
    )


def test_triton_options_become_flags(tmp_path: Path) -> None:
    made = plan(
        model_control_mode="explicit",
        cache_config="local,size=1048576",
        trace_config=("level=TIMESTAMPS", "rate=1"),
        triton_args=("--log-verbose=1", "--http-thread-count", "16"),
    )
    assert made.model_control_mode == "explicit"
    flags = [word for word in made.argv if word.startswith(("--load", "--cache", "--trace"))]
    assert flags == [
        *(f"--load-model={name}" for name in MODEL.models),
        "--cache-config=local,size=1048576",
        "--cache-directory=/wheel/caches",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
    ]
    # Passthrough options come last and replace tllm's flags.
    assert made.argv[-3:] == ("--log-verbose=1", "--http-thread-count", "16")
    assert "--log-verbose=0" not in made.argv


def test_polled_models_disable_bytecode_files() -> None:
    assert plan(model_control_mode="poll").environ["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in plan().environ


def test_load_model_selects_the_models_loaded_at_startup() -> None:
    other = dataclasses.replace(MODEL, name="other", path=Path("/others/other"))
    made = plan_launch(
        [MODEL, other],
        EMBEDDED,
        LaunchOptions(model_control_mode="explicit", load_model=("other",)),
        servers=Path("/servers"),
        token="secret",
        combined=COMBINED,
    )
    assert (made.loading, made.every_model) == (("other",), tuple(each.name for each in COMBINED))
    assert (made.parts_of("mine"), made.parts_of("other")) == (
        ("mine", "mine_ensemble"),
        ("other",),
    )
    assert LaunchPlan.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"load_model": ("mine",)},
            "--load-model requires explicit model control mode, but the mode is 'none'",
        ),
        (
            {"load_model": ("nope",), "model_control_mode": "explicit"},
            "the server's models are mine",
        ),
        (
            {"grpc_server_key": Path("/key")},
            "TLS for gRPC requires a certificate and a private key",
        ),
    ],
)
def test_conflicting_triton_options_are_rejected(options: dict[str, object], why: str) -> None:
    with pytest.raises(BadInput) as raised:
        plan(**options)
    assert why in str(raised.value)


def test_request_of_a_plan_is_read_back() -> None:
    request = LaunchRequest(("mine",), (Path("/r"),), {"http_port": 1, "triton_args": ["--x"]})
    tls = Tls("/a.crt", "name")
    made = dataclasses.replace(plan(), request=request)
    made = dataclasses.replace(made, endpoint=dataclasses.replace(made.endpoint, tls=tls))
    assert LaunchPlan.from_json(made.to_json()) == made


def test_hostfile_is_rejected_in_container_mode():
    options = LaunchOptions(mode="container", hostfile=Path("/hosts"))
    with pytest.raises(BadInput, match="--hostfile cannot be used with containers"):
        plan_ranks([], options)
