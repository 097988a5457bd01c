"""LoRA adapters of TensorRT engines as models of the API, with an emulated engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.cpp_backend import EmulatedTllm, import_engine, make_engine, make_tllm
from tests.ports import free_ports
from tests.samples.lora_adapters import write_converted


@pytest.fixture(scope="module")
def api(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Serve an engine whose cache contains one adapter: 5 at first.

    `poet` is an adapter of the gateway, and clients may load `pirate`.
    """
    folder = tmp_path_factory.mktemp("lora")
    write_converted(folder / "prefetched" / "5", first=5)
    poet = write_converted(folder / "poet", first=7)
    write_converted(folder / "tenants" / "pirate", first=9)
    tllm = make_tllm(folder)
    engine = make_engine(folder / "engine", "1.1.0", emulator={"max_adapters": 1})
    prefetched = f"lora_prefetch_dir={folder / 'prefetched'}"
    import_engine(tllm, "demo", engine, letters, "--param", prefetched)
    try:
        yield from start(tllm, f"--lora=poet={poet}", f"--runtime-lora-dir={folder / 'tenants'}")
    finally:
        tllm("stop", "--all")


def start(tllm: EmulatedTllm, *words: str) -> Iterator[openai.OpenAI]:
    started = tllm.start("--openai", f"--openai-port={free_ports(1)[0]}", *words)
    assert started.returncode == 0, started.stdout + started.stderr
    url = f"{tllm.status()['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def generate(api: openai.OpenAI, model: str, *, stream: bool = False) -> str:
    answer = api.completions.create(
        model=model, prompt="aaa", temperature=0, max_tokens=3, stream=stream
    )
    if isinstance(answer, openai.Stream):
        return "".join(each.choices[0].text for each in answer)
    return answer.choices[0].text


def test_adapters_are_models_even_if_the_cache_evicts_them(api: openai.OpenAI) -> None:
    assert {each.id: each.to_dict()["parent"] for each in api.models.list()} == {
        "demo": None, "5": "demo", "poet": "demo",
    }  # fmt: skip
    # The adapters replace each other in the cache.
    for stream in (False, True):
        texts = [generate(api, model, stream=stream) for model in ("demo", "5", "poet", "5")]
        assert texts == ["aaa", "fff", "hhh", "fff"]


def test_a_client_loads_and_unloads_an_adapter(api: openai.OpenAI) -> None:
    body = {"lora_name": "pirate", "lora_path": "pirate"}
    api.post("/load_lora_adapter", body=body, cast_to=str)
    assert generate(api, "pirate") == "jjj"
    assert generate(api, "poet") == "hhh"
    assert generate(api, "pirate") == "jjj"
    api.post("/unload_lora_adapter", body={"lora_name": "pirate"}, cast_to=str)
    with pytest.raises(openai.NotFoundError):
        generate(api, "pirate")
