"""Run AIPerf as a client of `load.py`, with the bodies and the endpoint of `tllm bench`.

AIPerf sends the bodies to Triton's `generate` endpoint unchanged and does not format prompts. Its
optional work is disabled: token counts of responses, telemetry, per-request files and the input
cache. AIPerf chooses the number of workers.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from load_clients import IN_FLIGHT, Measured, run_client

from trtllm_serve_cli.bench.model.served_model import Target, fetch_model
from trtllm_serve_cli.bench.transport.codec import RequestOptions, encode_body
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist

# AIPerf requires a tokenizer; this one is minimal, since tokens are not counted.
TOKENIZER = {
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
    },
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"},
}


def run_aiperf(program: str, address: str, num_requests: int) -> Measured:
    """Run a closed loop of `IN_FLIGHT`, and return AIPerf's request throughput."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = folder / "inputs.json"
        inputs.write_text(json.dumps(make_inputs(address, num_requests)))
        for file, content in TOKENIZER.items():
            (folder / file).write_text(json.dumps(content))
        command = [program, "profile", "--model", "tensorrt_llm", "--url", f"http://{address}"]
        command += ["--endpoint-type", "raw"]
        command += ["--custom-endpoint", "/v2/models/tensorrt_llm/generate"]
        # A response without text would count as failed.
        command += ["--extra-inputs", "response_field:model_name"]
        command += ["--input-file", str(inputs), "--custom-dataset-type", "inputs_json"]
        command += ["--tokenizer", str(folder), "--use-server-token-count"]
        command += ["--concurrency", str(IN_FLIGHT), "--request-count", str(num_requests)]
        command += ["--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"]
        command += ["--export-level", "summary", "--artifact-dir", str(folder / "out")]
        environ = {**os.environ, "AIPERF_DATASET_MMAP_CACHE_ENABLED": "false"}
        _, cpu_s = run_client(command, environ)
        result = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    assert result["request_count"]["avg"] == num_requests, result
    assert not result["error_summary"], result["error_summary"]
    return Measured(result["request_throughput"]["avg"], cpu_s)


def make_inputs(address: str, num_requests: int) -> dict[str, Any]:
    """Return requests with the lengths in `LENGTHS` in AIPerf's format, one per session."""
    model = fetch_model(Target(address, interface="http"), "tokens")
    assert model.vocab_size is not None
    workload = TokenNormDist(output_stdev=0)
    specs = workload.draw(num_requests, model.vocab_size, np.random.default_rng(0))
    return {
        "data": [
            {
                "session_id": str(number),
                "payloads": [json.loads(encode_body(spec, model, RequestOptions()))],
            }
            for number, spec in enumerate(specs)
        ]
    }
