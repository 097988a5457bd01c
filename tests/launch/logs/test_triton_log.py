"""Causes of failures in shortened logs of Triton 2.51."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.launch.logs.triton_log import explain_log, find_loading, is_option_rejected

# A machine without a GPU always logs these lines.
ALWAYS = """\
I1121 09:50:18.344667 25664 pinned_memory_manager.cc:283] "Pinned memory pool disabled"
E1121 09:50:18.344999 25664 server.cc:241] "CudaDriverHelper has not been initialized."
I1121 09:50:18.346245 25664 model_lifecycle.cc:472] "loading: m:1"
Error: Failed to initialize NVML
W1121 09:50:18.701353 25664 metrics.cc:798] "DCGM unable to start: DCGM initialization error"
"""
LAST = "error: creating server: Internal - failed to load all models\n"
RAISES = r"""
I1121 09:50:18.475027 25664 pb_stub.cc:366] "Failed to initialize Python stub: FileNotFoundError: [Errno 2] No such file or directory: '/no/such/engine'\n\nAt:\n  /r/m/1/model.py(3): initialize\n"
E1121 09:50:18.697623 25664 backend_model.cc:692] "ERROR: Failed to create instance: FileNotFoundError: [Errno 2] No such file or directory: '/no/such/engine'\n\nAt:\n  /r/m/1/model.py(3): initialize\n"
E1121 09:50:18.697931 25664 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: FileNotFoundError: [Errno 2] No such file or directory: '/no/such/engine'\n\nAt:\n  /r/m/1/model.py(3): initialize\n"
I1121 09:50:18.697950 25664 model_lifecycle.cc:777] "failed to load 'm'"
"""  # noqa: E501
MISSING_MODULE = r"""
I1121 09:50:21.753471 25737 pb_stub.cc:366]  Failed to initialize Python stub: ModuleNotFoundError: No module named 'nowhere'

At:
  /r/m/1/model.py(1): <module>
  <frozen importlib._bootstrap>(241): _call_with_frames_removed
E1121 09:50:22.055592 25727 backend_model.cc:692] "ERROR: Failed to create instance: ModuleNotFoundError: No module named 'nowhere'\n\nAt:\n  /r/m/1/model.py(1): <module>\n"
E1121 09:50:22.055697 25727 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: ModuleNotFoundError: No module named 'nowhere'\n\nAt:\n  /r/m/1/model.py(1): <module>\n"
"""  # noqa: E501
DEAD_STUB = """
E1121 09:50:25.113259 25752 backend_model.cc:692] "ERROR: Failed to create instance: Stub process 'm_0' is not healthy."
E1121 09:50:25.113389 25752 model_lifecycle.cc:642] "failed to load 'm' version 1: Internal: Stub process 'm_0' is not healthy."
I1121 09:50:25.113408 25752 model_lifecycle.cc:777] "failed to load 'm'"
"""  # noqa: E501
NO_STUB = """
E1121 09:50:26.135310 25768 model_lifecycle.cc:642] "failed to load 'm' version 1: Not found: triton_python_backend_stub is not found. Searched paths: /b/python and /b/python"
I1121 09:50:26.135332 25768 model_lifecycle.cc:777] "failed to load 'm'"
"""  # noqa: E501
BROKEN_CONFIG = """
[libprotobuf ERROR /tmp/text_format.cc:337] Error parsing text-format inference.ModelConfig: 1:7: Expected string, got: [
E1121 09:50:23.073846 25743 model_repository_manager.cc:1460] "Poll failed for model directory 'm': failed to read text proto from /r/m/config.pbtxt"
"""  # noqa: E501
HTTP_PORT = """
I1121 09:50:27.768100 25819 model_lifecycle.cc:839] "successfully loaded 'm'"
I1121 09:50:27.772981 25819 http_server.cc:4713] "Started HTTPService at 127.0.0.1:18510"
E1121 09:50:27.814173 25819 main.cc:257] "failed to start HTTP service: Unavailable - Socket '127.0.0.1:18510' already in use "
I1121 09:50:28.884313 25829 pb_stub.cc:2145]  Non-graceful termination detected.
"""  # noqa: E501
GRPC_PORT = """
E1121 09:50:28.946690659   25889 chttp2_server.cc:1060]                UNKNOWN:No address added out of total 1 resolved for '127.0.0.1:18510' {created_time:"2026-11-21T09:50:28.946484471+00:00", children:[UNKNOWN:Unable to configure socket {fd:7, children:[UNKNOWN:Address already in use {syscall:"bind", os_error:"Address already in use", errno:98}]}]}
E1121 09:50:28.950421 25889 main.cc:245] "failed to start GRPC service: Unavailable - Socket '127.0.0.1:18510' already in use "
"""  # noqa: E501
NO_REPOSITORY = "error: creating server: Internal - failed to stat file /no/such/repository\n"
NO_LIBRARY = "tritonserver: error while loading shared libraries: libb64.so.0: cannot open\n"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            RAISES + LAST,
            "m: Internal: FileNotFoundError: [Errno 2] No such file or directory: "
            "'/no/such/engine'",
        ),
        (MISSING_MODULE + LAST, "m: Internal: ModuleNotFoundError: No module named 'nowhere'"),
        (DEAD_STUB + LAST, "m: Internal: Stub process 'm_0' is not healthy."),
        (
            NO_STUB + LAST,
            "m: Not found: triton_python_backend_stub is not found. "
            "Searched paths: /b/python and /b/python",
        ),
        (
            BROKEN_CONFIG + LAST,
            "Poll failed for model directory 'm': failed to read text proto from "
            "/r/m/config.pbtxt",
        ),
        (
            HTTP_PORT,
            "failed to start HTTP service: Unavailable - Socket '127.0.0.1:18510' already in use",
        ),
        (
            GRPC_PORT,
            "failed to start GRPC service: Unavailable - Socket '127.0.0.1:18510' already in use",
        ),
        (NO_REPOSITORY, NO_REPOSITORY.strip()),
        (NO_LIBRARY, NO_LIBRARY.strip()),
    ],
    ids=[
        "raises", "missing module", "dead stub", "no stub", "broken config", "http port",
        "grpc port", "no repository", "no library",
    ],
)  # fmt: skip
def test_cause_is_one_line_without_a_prefix(log: str, cause: str) -> None:
    assert explain_log((ALWAYS + log).splitlines()) == [cause]


def test_each_model_has_one_cause() -> None:
    other = MISSING_MODULE.replace("'m'", "'n'")
    causes = explain_log((RAISES + other + RAISES).splitlines())
    assert [cause.partition(":")[0] for cause in causes] == ["m", "n"]


def test_number_of_causes_is_limited() -> None:
    lines = [DEAD_STUB.splitlines()[2].replace("'m'", f"'m{number}'") for number in range(9)]
    assert len(explain_log(lines)) == 6


def test_healthy_log_has_no_cause() -> None:
    assert explain_log(ALWAYS.splitlines()) == []


@pytest.mark.parametrize(
    ("line", "causes"),
    [
        ("E1121 09:50:18.697931 25664 server.cc:1] ", []),
        (
            "E1121 09:50:18.697931 25664 model_lifecycle.cc:642] failed to load 'm' version 1: ",
            ["m: "],
        ),
    ],
)
def test_line_without_a_message(line: str, causes: list[str]) -> None:
    assert explain_log([line]) == causes


def test_long_line_is_cut() -> None:
    (cause,) = explain_log([f"Error: {'x' * 1000}"])
    assert len(cause) == 400


def test_models_still_loading() -> None:
    lines = (ALWAYS + HTTP_PORT).splitlines()
    assert find_loading(lines, ("m", "n")) == ["n"]
    assert find_loading([], ("m", "n")) == ["m", "n"]


MPIRUN = """\
--------------------------------------------------------------------------
All nodes which are allocated for this job are already filled.
--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 0 on node here exited on signal 9 (Killed).
"""


def test_messages_of_mpirun_are_causes() -> None:
    assert explain_log(MPIRUN.splitlines()) == [
        "All nodes which are allocated for this job are already filled.",
        "mpirun noticed that process rank 1 with PID 0 on node here exited on signal 9 (Killed).",
    ]


# Triton prints the error before or after its usage.
USAGE = """\
Usage: tritonserver [options]
  --help
\tPrint usage

Server:
  --id <string>
\tIdentifier for this server. Error: failed to be read as such.
"""


@pytest.mark.parametrize(
    ("before", "after", "causes"),
    [
        ("/opt/tritonserver/bin/tritonserver: unrecognized option '--x'\n", "",
         ["unrecognized option '--x'"]),
        ("", 'Bad option: "--http-port".\nInvalid option value. Got abc\n\n',
         ['Bad option: "--http-port".', "Invalid option value. Got abc"]),
        ("", "Unexpected argument: foo\n", ["Unexpected argument: foo"]),
    ],
    ids=["unknown", "bad value", "no option"],
)  # fmt: skip
def test_rejected_option_is_found_around_the_usage_text(
    before: str, after: str, causes: list[str]
) -> None:
    assert explain_log((before + USAGE + after).splitlines()) == causes


def test_number_of_rejected_options_is_limited() -> None:
    errors = [f"Unexpected argument: {number}" for number in range(9)]
    assert explain_log([*USAGE.splitlines(), *errors], limit=2) == errors[-2:]


def test_usage_message_shows_that_an_option_was_rejected() -> None:
    assert is_option_rejected(["unrecognized option '--x'", "Usage: tritonserver [options]"])
    assert not is_option_rejected(["E0101 failed to load 'm' version 1: no"])
