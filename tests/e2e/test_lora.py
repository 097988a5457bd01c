"""Concurrent requests with different LoRA adapters, by task id and by name."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.conftest import Tllm
from tests.e2e.core import infer, tokens
from tests.e2e.shallow import NUM_LAYERS
from tests.ports import free_ports
from tests.samples.lora_adapters import make_adapter, write_peft
from trtllm_serve_cli.client.endpoint import Endpoint

# Modules of the model: module -> (features out, features in).
SITES = {
    f"model.layers.{layer}.{name}": size
    for layer in range(NUM_LAYERS)
    for name, size in {
        "self_attn.q_proj": (576, 576),
        "self_attn.v_proj": (192, 576),
        "mlp.gate_proj": (1536, 576),
        "mlp.up_proj": (1536, 576),
        "mlp.down_proj": (576, 1536),
    }.items()
}
PROMPT = [504, 2115, 476, 24939, 1380, 18]
NUM_TOKENS = 12
# Runs OpenVINO GenAI directly with an adapter. argv: engine, adapter file, prompt, length.
RUN_GENAI = """
import json, sys
import numpy as np, openvino, openvino_genai as genai
engine, file, prompt, length = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
scheduler = genai.SchedulerConfig()
scheduler.num_kv_blocks = 16
adapters = genai.AdapterConfig(genai.Adapter(file), mode=genai.AdapterConfig.Mode.MODE_STATIC)
pipeline = genai.ContinuousBatchingPipeline(engine, scheduler, "CPU", {"adapters": adapters})
config = genai.GenerationConfig(max_new_tokens=length, ignore_eos=True)
result = pipeline.generate([openvino.Tensor(np.array([prompt]))], [config])
print(json.dumps(result[0].m_generation_ids[0]))
"""


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the server's adapters: `poet` in PEFT's format and 7 in upstream's."""
    folder = tmp_path_factory.mktemp("adapters")
    write_peft(
        folder / "poet", make_adapter(SITES, ["q_proj", "v_proj"], seed=1, rank=8, scale=0.2)
    )
    other = make_adapter(SITES, ["gate_proj", "up_proj", "down_proj"], seed=2, rank=4, scale=0.2)
    peft = write_peft(tmp_path_factory.mktemp("peft"), other, {"lora_alpha": 6})
    Tllm(folder).done("lora", "convert", str(peft), str(folder / "7"))
    return folder


@pytest.fixture(scope="module")
def tllm(
    imported: Tllm, source: str, adapters: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tllm]:
    """Serve the demo model with room for two adapters."""
    tllm = imported.with_own_home(tmp_path_factory.mktemp("lora") / "home")
    folder, room = f"--param=lora_prefetch_dir={adapters}", "--param=max_loras=2"
    options = (folder, room, "--param=max_tokens_in_paged_kv_cache=2048", "--max-batch-size=8")
    tllm.done("import", "-m", "demo", "-s", source, *options)
    ports = f"--openai-port={free_ports(1)[0]}"
    named = f"--lora=acme/poet={adapters / 'poet'}"
    started = tllm.start("--openai", ports, named, f"--runtime-lora-dir={adapters}")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        yield tllm
    finally:
        tllm("stop", "--all")


@pytest.fixture(scope="module")
def server(tllm: Tllm) -> Endpoint:
    return tllm.endpoint()


def sent_as(task_id: int, folder: Path) -> dict[str, Any]:
    """Return the tensors that upstream's client sends for a converted adapter."""
    return {
        "lora_task_id": np.uint64(task_id),
        "lora_weights": np.load(folder / "model.lora_weights.npy")[0],
        "lora_config": np.load(folder / "model.lora_config.npy")[0],
    }


def generate_tokens(endpoint: Endpoint, **inputs: Any) -> list[int]:
    return tokens(infer(endpoint, PROMPT, NUM_TOKENS, streaming=True, **inputs))


POET: dict[str, Any] = {"parameters": {"lora_name": "poet"}}
SEVEN: dict[str, Any] = {"lora_task_id": np.uint64(7)}


@pytest.fixture(scope="module")
def alone(server: Endpoint) -> list[list[int]]:
    """Generate the tokens of a plain request and of one with each adapter, one by one."""
    return [generate_tokens(server, **inputs) for inputs in ({}, POET, SEVEN)]


def test_requests_with_different_adapters_run_concurrently(
    server: Endpoint, alone: list[list[int]]
) -> None:
    # One request for each adapter: batch sizes change the last bits of an adapter's results.
    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            futures = [
                threads.submit(generate_tokens, server, **inputs) for inputs in ({}, POET, SEVEN)
            ]
            assert [future.result() for future in futures] == alone
    assert len({tuple(each) for each in alone}) == 3


def test_sent_weights_equal_prefetched_ones(
    server: Endpoint, alone: list[list[int]], adapters: Path
) -> None:
    assert generate_tokens(server, **sent_as(5, adapters / "7")) == alone[2]
    assert generate_tokens(server, lora_task_id=np.uint64(5)) == alone[2]
    # Two of three adapters are loaded; the evicted one is loaded again.
    assert generate_tokens(server, **POET) == alone[1]


def test_an_adapter_is_applied_as_openvino_genai_applies_it(
    imported: Tllm, alone: list[list[int]], adapters: Path
) -> None:
    file = str(adapters / "poet" / "adapter_model.safetensors")
    engine = str(imported.engine("demo"))
    command = (sys.executable, "-c", RUN_GENAI, engine, file, json.dumps(PROMPT), str(NUM_TOKENS))
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    assert json.loads(output) == alone[1]


def generate_text(endpoint: Endpoint, model: str, **body: Any) -> Any:
    """Return the text of a response, or its error."""
    data = json.dumps({"text_input": "What is ML?", "max_tokens": NUM_TOKENS, **body}).encode()
    url = f"http://{endpoint.http}/v2/models/{model}/generate"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=60) as response:
            return json.loads(response.read())["text_output"]
    except urllib.error.HTTPError as error:
        return json.loads(error.read())["error"]


def test_gateway_serves_adapters_as_models(tllm: Tllm, server: Endpoint) -> None:
    address = tllm.status()["openai"]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:

        def complete(model: str) -> str:
            prompt = {"prompt": "What is ML?", "temperature": 0, "max_tokens": NUM_TOKENS}
            return client.completions.create(model=model, **prompt).choices[0].text

        assert {each.id for each in client.models.list()} == {"demo", "poet", "7", "acme/poet"}
        # Both requests of an adapter follow each other, because each load takes seconds.
        inputs: dict[str, Any] = {"demo": {}, "7": {"lora_task_id": 7}}
        inputs["poet"] = {"parameters": {"lora_name": "poet"}}
        texts = {}
        for model, body in inputs.items():
            texts[model] = complete(model)
            expected = generate_text(server, "tensorrt_llm_bls", **body)
            assert f"What is ML?{texts[model]}" == expected
        # The same adapter in the folder that the server reads when it starts, and of the gateway.
        assert complete("acme/poet") == texts["poet"] != texts["demo"]


def test_a_client_loads_and_unloads_an_adapter(tllm: Tllm) -> None:
    address = tllm.status()["openai"]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:

        def generate(model: str) -> str:
            prompt = {"prompt": "What is ML?", "temperature": 0, "max_tokens": NUM_TOKENS}
            return client.completions.create(model=model, **prompt).choices[0].text

        body = {"lora_name": "copy", "lora_path": "poet"}
        client.post("/load_lora_adapter", body=body, cast_to=str)
        assert generate("copy") == generate("poet") != generate("demo")
        client.post("/unload_lora_adapter", body={"lora_name": "copy"}, cast_to=str)
        with pytest.raises(openai.NotFoundError):
            generate("copy")
        with pytest.raises(openai.BadRequestError, match="is not a subfolder"):
            client.post("/load_lora_adapter", body={**body, "lora_path": ".."}, cast_to=str)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "demo"])
def test_text_models_forward_the_adapter(server: Endpoint, model: str) -> None:
    by_name = generate_text(server, model, parameters={"lora_name": "7"})
    by_id = generate_text(server, model, lora_task_id=7)
    assert by_name == by_id != generate_text(server, model)
    assert "send one of these names: 7, poet" in generate_text(server, model, lora_name="x")


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"lora_task_id": np.uint64(77)}, "LoRA task 77 not found in cache"),
        ({"parameters": {"lora_name": "x"}}, "the lora_name 'x'"),
        (
            {"lora_weights": np.zeros((1, 4), np.float16)},
            "lora_weights and lora_config require lora_task_id",
        ),
        ({**SEVEN, "lora_weights": np.zeros((1, 4), np.float16)}, "lora_config is missing"),
        (
            {
                "lora_task_id": np.uint64(78),
                "lora_weights": np.full((1, 1152), np.nan, np.float16),
                "lora_config": np.array([[1, 0, 1]], np.int32),
            },
            "contains NaN or infinity",
        ),
        (
            {
                "lora_task_id": np.uint64(79),
                "lora_weights": np.zeros((1, 4), np.float16),
                "lora_config": np.array([[1, 99, 1]], np.int32),
            },
            "lora_config row 0 is for module 1",
        ),
    ],
)
def test_bad_adapters_are_rejected_and_do_not_affect_other_requests(
    server: Endpoint, alone: list[list[int]], inputs: Any, why: str
) -> None:
    with pytest.raises(InferenceServerException, match=why):
        generate_tokens(server, **inputs)
    assert generate_tokens(server) == alone[0]
