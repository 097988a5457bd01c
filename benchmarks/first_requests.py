"""Compare the first requests after a start with the tenth, with and without `--warmup`.

    python benchmarks/first_requests.py [--rounds 5] [--engine sim|openvino|both] [--json]

Each server receives ten requests of one kind, one after another: text through gRPC, a chat
completion, or a chat completion with a JSON schema. The engines are a simulated one with steps of
20 ms, which does not support schemas, and OpenVINO with the demo model. Each round starts a server
for each kind, with and without warm-up, and divides the times of the requests 1 and 2 by those of
request 10. The result is the median of the rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from simulated import import_simulated

from trtllm_serve_cli.client.ask import stream
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import fetch_model_config
from trtllm_serve_cli.importing.declaration import Declaration, ModelSection
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.startup import read_starts
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home, find_home

NUM_REQUESTS = 10
NUM_TOKENS = 16
SHOWN = (1, 2)
STEP_MS = 20
MODELS = {"sim": "first-requests-sim", "openvino": "demo"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["city", "population"],
    "additionalProperties": False,
}

HAS_TEXT = re.compile(rb'"content": ?"[^"]')
Times = tuple[float, float]


@dataclass(frozen=True)
class Start:
    """The duration of a warm-up, and the times of the requests after it, in seconds.

    The times of a request are those until the first token and until the end of the response.
    """

    warmup_s: float
    times: list[Times]


def time_pieces(pieces: Iterator[object], started_s: float) -> Times:
    """Return the seconds until the first piece and until the end of a response."""
    next(pieces)
    first_s = time.perf_counter() - started_s
    for _ in pieces:
        pass
    return first_s, time.perf_counter() - started_s


def write_prompt(number: int) -> str:
    """Return a prompt whose first words differ, so that the engine cannot reuse its KV cache."""
    return f"{number} is the number of this request. " + "Describe a city and its people. " * 12


def send_text(server: RunningServer) -> Callable[[int], Times]:
    """Return a function that sends a text request through gRPC."""
    model = server.text_model()
    info = fetch_model_config(server.endpoint, model, "http")

    def send(number: int) -> Times:
        request = GenerateRequest(write_prompt(number), max_tokens=NUM_TOKENS)
        started_s = time.perf_counter()
        with closing(stream(server.endpoint, model, request, "grpc", info=info)) as pieces:
            return time_pieces(pieces, started_s)

    return send


def send_chat(
    server: RunningServer, schema: dict[str, Any] | None = None
) -> Callable[[int], Times]:
    """Return a function that sends a chat completion, with a JSON schema if `schema` is set."""
    assert server.plan.gateway is not None
    address = urlsplit(server.plan.gateway.url).netloc
    name = server.models[0]

    def send(number: int) -> Times:
        body: dict[str, Any] = {
            "model": name,
            "messages": [{"role": "user", "content": write_prompt(number)}],
            "max_tokens": NUM_TOKENS,
            "stream": True,
        }
        if schema is not None:
            form = {"name": "city", "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        started_s = time.perf_counter()
        with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            response = connection.getresponse()
            if response.status != 200:
                sys.exit(response.read().decode())
            chunks = (line for line in response if HAS_TEXT.search(line))
            return time_pieces(chunks, started_s)

    return send


SCHEMA_KIND = "chat, JSON schema"
KINDS: dict[str, Callable[[RunningServer], Callable[[int], Times]]] = {
    "text, gRPC": send_text,
    "chat": send_chat,
    SCHEMA_KIND: lambda server: send_chat(server, SCHEMA),
}


def measure(home: Home, model: str, kind: str, *, warmup: bool) -> Start:
    """Start a server, send the requests, and return the times."""
    options = {"http_port": 8100, "warmup": warmup}
    server = launch(plan_for_this_machine(home, [model], options), on_progress=lambda loading: None)
    try:
        if problems := read_starts(server.directory)[0].problems:
            sys.exit("\n".join(problems))
        send = KINDS[kind](server)
        times = [send(number) for number in range(1, NUM_REQUESTS + 1)]
    finally:
        stop_server(server)
    stages = {each.name: each.duration_s for each in read_starts(server.directory)[0].stages}
    return Start(stages.get("warm-up", 0.0), times)


def median_ratios(starts: list[Start], part: int) -> dict[int, float]:
    """Return for each shown request its time, divided by that of the last request."""
    return {
        number: statistics.median(
            each.times[number - 1][part] / each.times[-1][part] for each in starts
        )
        for number in SHOWN
    }


def summarize(starts: list[Start]) -> dict[str, Any]:
    """Return the medians of several starts."""
    return {
        "warmup_s": statistics.median(each.warmup_s for each in starts),
        "last_ttft_ms": statistics.median(each.times[-1][0] for each in starts) * 1e3,
        "first_ttft_ms": statistics.median(each.times[0][0] for each in starts) * 1e3,
        "ttft_ratios": median_ratios(starts, 0),
        "total_ratios": median_ratios(starts, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=(*MODELS, "both"), default="both")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    home = find_home()
    engines = tuple(MODELS) if arguments.engine == "both" else (arguments.engine,)
    if "sim" in engines:
        import_simulated(home, MODELS["sim"], STEP_MS)
    if "openvino" in engines:
        import_model(Declaration(ModelSection(MODELS["openvino"])), home)
    # The client's own first request imports its packages.
    measure(home, MODELS[engines[0]], "text, gRPC", warmup=False)
    cases = [
        (engine, kind, warmup)
        for engine in engines
        for kind in KINDS
        if (engine, kind) != ("sim", SCHEMA_KIND)
        for warmup in (False, True)
    ]
    starts: dict[tuple[str, str, bool], list[Start]] = {case: [] for case in cases}
    for _ in range(arguments.rounds):
        for engine, kind, warmup in cases:
            start = measure(home, MODELS[engine], kind, warmup=warmup)
            starts[engine, kind, warmup].append(start)
    report({case: summarize(each) for case, each in starts.items()}, as_json=arguments.json)


def report(results: dict[tuple[str, str, bool], dict[str, Any]], *, as_json: bool) -> None:
    """Print the medians."""
    if as_json:
        names = ("engine", "kind", "warmup")
        rows = [dict(zip(names, case, strict=True)) | each for case, each in results.items()]
        print(json.dumps(rows, indent=2))
        return
    print("                                         first token (ms)  ratio to 10th  whole, ratio")
    print("engine    request            warm-up        1st     10th     1st    2nd    1st    2nd")
    for (engine, kind, _), each in results.items():
        ratios = "".join(
            f"{each[part][number]:7.2f}"
            for part in ("ttft_ratios", "total_ratios")
            for number in SHOWN
        )
        warmup = f"{each['warmup_s']:.1f} s" if each["warmup_s"] else "no"
        times = f"{each['first_ttft_ms']:9.0f}{each['last_ttft_ms']:9.0f}"
        print(f"{engine:<10}{kind:<19}{warmup:<9}{times} {ratios}")


if __name__ == "__main__":
    main()
