from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trtllm_serve_cli.bench.run.sampling import ServerSample, sampling

PAGE = b"""\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 3
"""


@pytest.fixture
def page() -> Iterator[tuple[str, list[str]]]:
    """The address of a metrics page, and what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_is_sampled_on_the_clients_clock(page: tuple[str, list[str]]) -> None:
    address, asked = page
    samples: list[ServerSample] = []
    before = time.perf_counter()
    with sampling({1: address}, 0.05, samples):
        while len(asked) < 3:
            time.sleep(0.01)
    assert len(samples) >= 2
    assert before < samples[0].at_s < samples[-1].at_s < time.perf_counter()
    assert samples[0].target == 1
    assert samples[0].state is not None
    assert samples[0].state["engines"][0]["num_active"] == 3
    line = samples[0].to_json(before)
    assert 0 < line["at_s"] < 60
    assert {"target", "models", "engines", "host"} < set(line)


def test_a_page_that_is_gone_is_an_error_and_no_end() -> None:
    samples: list[ServerSample] = []
    with sampling({0: "127.0.0.1:1"}, 0.1, samples):
        time.sleep(0.3)
    assert samples
    assert {sample.error for sample in samples} == {"No server publishes metrics at 127.0.0.1:1."}
    assert "error" in samples[0].to_json(0.0)


def test_without_addresses_nothing_is_started() -> None:
    samples: list[ServerSample] = []
    with sampling({}, 0.1, samples):
        pass
    assert samples == []
