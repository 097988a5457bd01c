"""Fetches from a fake hub on loopback."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.hub import COMMIT, FakeHub, serve
from tests.samples.checkpoints import hf_files, safetensors
from tests.samples.embedding_models import embedding_files
from trtllm_serve_cli.build.checkpoint_facts import read_weight_format
from trtllm_serve_cli.errors import BadInput, GatedModel, SourceError, UnsafeCheckpoint
from trtllm_serve_cli.paths import find_home
from trtllm_serve_cli.sources.checkpoint import Checkpoint, FetchOptions
from trtllm_serve_cli.sources.formats.sentence_transformers import read_embedding
from trtllm_serve_cli.sources.hub.api import fetch_from_hub, inspect_on_hub
from trtllm_serve_cli.sources.hub.hub_source import HubSource
from trtllm_serve_cli.sources.hub_address import Hub, find_hub

TINY = HubSource("acme/tiny")


@pytest.fixture
def fake():
    with serve(FakeHub(hf_files())) as fake:
        yield fake


@pytest.fixture
def hub(fake, tmp_path):
    return Hub(fake.url, tmp_path / "cache")


def fetch(
    hub: Hub, source=TINY, messages=None, watch=lambda progress: None, **options
) -> Checkpoint:
    messages = [] if messages is None else messages
    options = FetchOptions(**options)
    return fetch_from_hub(
        source,
        hub=hub,
        home=find_home(),
        options=options,
        notify=messages.append,
        watch=watch,
    )


def test_checkpoint_is_pinned_to_its_commit(fake, hub):
    checkpoint = fetch(hub)
    assert checkpoint == Checkpoint(
        path=hub.cache / "models--acme--tiny" / "snapshots" / COMMIT,
        format="hf",
        source=f"hf:acme/tiny@{COMMIT}",
        revision=COMMIT,
        architecture="LlamaForCausalLM",
        size_bytes=len(safetensors()),
    )
    assert (checkpoint.path / "model.safetensors").read_bytes() == safetensors()


def test_downloads_only_safetensors_and_small_files(fake, hub):
    extra = ("pytorch_model.bin", "consolidated.safetensors", "README.md", "model.py", "x.gguf")
    fake.files.update(dict.fromkeys(extra, b"large"), **{"original/params.json": b"{}"})
    folder = fetch(hub).path
    assert {path.name for path in folder.iterdir()} == set(hf_files())


def test_downloads_the_modules_of_an_embedding_model(fake, hub):
    fake.files.update(embedding_files())
    fake.files.update({"onnx/config.json": b"{}", "1_Pooling/model.bin": b"x"})
    options = FetchOptions()
    planned = inspect_on_hub(TINY, hub=hub, options=options)
    assert planned is not None and planned.is_embedding_model
    assert read_embedding(planned.path).prompts == {}
    checkpoint = fetch(hub)
    names = {
        str(path.relative_to(checkpoint.path))
        for path in checkpoint.path.rglob("*")
        if path.is_file()
    }
    assert names == set(embedding_files())


def test_downloads_additional_chat_templates(fake, hub):
    template = "additional_chat_templates/tool_use.jinja"
    fake.files.update({template: b"{{ tools }}", "other/default.jinja": b"{{ messages }}"})
    folder = fetch(hub).path
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.jinja")] == [template]


def test_inspection_includes_the_format_of_quantized_weights(fake, hub):
    facts = json.dumps({"quantization": {"quant_algo": "NVFP4"}}).encode()
    fake.files["hf_quant_config.json"] = facts
    planned = inspect_on_hub(TINY, hub=hub, options=FetchOptions())
    assert planned is not None and read_weight_format(planned) == "nvfp4"
    assert "model.safetensors" not in {path.name for path in planned.path.iterdir()}


def test_a_module_that_is_not_supported_is_rejected_before_the_weights(fake, hub):
    fake.files.update(embedding_files(modules=("Transformer", "Pooling", "Dense")))
    with pytest.raises(SourceError, match="is not supported"):
        inspect_on_hub(TINY, hub=hub, options=FetchOptions())


def test_does_not_download_weights_that_are_not_needed(fake, hub):
    checkpoint = fetch(hub, needs_weights=False)
    names = sorted(path.name for path in checkpoint.path.iterdir())
    assert (names, checkpoint.size_bytes) == (["config.json", "tokenizer.json"], 0)
    assert (fetch(hub).path / "model.safetensors").read_bytes() == safetensors()


def test_second_fetch_neither_downloads_nor_hashes(fake, hub):
    fetch(hub)
    fake.requests.clear()
    messages: list[str] = []
    fetch(hub, messages=messages)
    assert "model.safetensors" not in fake.downloaded()
    assert messages == []


def test_reports_size_and_destination_of_a_download(fake, hub):
    messages: list[str] = []
    fetch(hub, messages=messages)
    assert messages == [
        f"Downloading hf:acme/tiny@{COMMIT}: {len(safetensors()) + 2} bytes into {hub.cache}.",
    ]


def test_resumes_an_interrupted_download(fake, hub):
    large = fake.files["model.safetensors"] = safetensors(num_floats=3 << 20)
    fake.cut_after_bytes = 11 << 20
    checkpoint = fetch(hub)
    assert fake.resumed() == [11 << 20]
    assert (checkpoint.path / "model.safetensors").read_bytes() == large


def test_stores_one_copy_of_the_weights(fake, hub, home_folder):
    large = fake.files["model.safetensors"] = safetensors(num_floats=1 << 20)
    fetch(hub)
    files = [path for folder in (hub.cache, home_folder) for path in folder.rglob("*")]
    on_disk = [path for path in files if path.is_file() and not path.is_symlink()]
    assert [path.name for path in on_disk if path.stat().st_size >= len(large)] == [
        fake.sha256("model.safetensors")
    ]


def test_progress_ends_with_all_bytes(fake, hub):
    seen = []
    fetch(hub, watch=seen.append)
    total = seen[-1].total
    assert (seen[-1].activity, total.done_bytes, total.size_bytes) == (
        "Downloading",
        len(safetensors()),
        len(safetensors()),
    )


def test_rejects_wrong_checksum_and_fetches_again(fake, hub):
    fake.wrong_sha256 = True
    with pytest.raises(SourceError) as caught:
        fetch(hub)
    assert str(caught.value) == (
        "Checksum verification failed for model.safetensors.\n"
        "Why: the SHA-256 checksum of the downloaded data differs from the checksum on the hub, "
        "so tllm has deleted the data\n"
        "Next: run the same command again to download the data again"
    )
    assert not list(hub.cache.glob("*/blobs/" + "0" * 64))
    fake.wrong_sha256 = False
    assert fetch(hub).revision == COMMIT


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_fetches_truncated_files_again(fake, hub, name):
    path = fetch(hub).path / name
    path.write_bytes(path.read_bytes()[:1])
    assert (fetch(hub).path / name).read_bytes() == fake.files[name]


def test_gated_model_links_to_its_licence(fake, hub):
    fake.is_gated = True
    with pytest.raises(GatedModel) as caught:
        fetch(hub)
    assert str(caught.value) == (
        "acme/tiny is gated.\n"
        "Why: the publisher requires that you accept a licence before you download the model\n"
        f"Next: accept the licence at {fake.url}/acme/tiny, then log in with `hf auth login`, or "
        "set HF_TOKEN to a token with read access"
    )


def test_unknown_model_may_be_private(fake, hub):
    with pytest.raises(SourceError, match="acme/other was not found on the hub") as caught:
        fetch(hub, HubSource("acme/other"))
    assert (
        caught.value.why
        == "the model does not exist, or it is private and your token does not grant access"
    )


def test_rejects_unknown_revision(fake, hub):
    with pytest.raises(SourceError) as caught:
        fetch(hub, HubSource("acme/tiny", "v9"))
    assert caught.value.what == "acme/tiny does not have a revision named v9."
    assert caught.value.next_step == (
        f"choose a commit listed at {fake.url}/acme/tiny/commits/main, or omit the revision"
    )


def test_pending_licence_shows_the_hubs_message(fake, hub):
    fake.is_gated, fake.gated_status = True, 403
    fake.headers = {"X-Error-Message": "Your request is awaiting a review."}
    with pytest.raises(GatedModel) as caught:
        fetch(hub)
    assert str(caught.value) == (
        "acme/tiny is gated, and you do not have access yet.\n"
        "Why: Your request is awaiting a review.\n"
        f"Next: check your request at {fake.url}/acme/tiny, then wait for the publisher's approval"
    )


def test_reports_and_fetches_a_renamed_model(fake, hub):
    fake.renamed_from = "acme/small"
    messages: list[str] = []
    checkpoint = fetch(hub, HubSource("acme/small"), messages)
    assert messages[0] == "acme/small has been renamed to acme/tiny."
    assert checkpoint.source == f"hf:acme/small@{COMMIT}"


def test_reports_a_token_without_permission(fake, hub):
    fake.status = 403
    with pytest.raises(GatedModel, match="a fine-grained token needs read access"):
        fetch(hub)


def test_reports_the_status_of_a_failing_hub(fake, hub):
    fake.status = 500
    with pytest.raises(SourceError, match="acme/tiny could not be downloaded") as caught:
        fetch(hub)
    assert caught.value.why.startswith(f"{fake.url} responded with status 500: ")


def test_closed_port_lists_what_to_check(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(SourceError) as caught:
        fetch(Hub(url, tmp_path / "cache"))
    assert caught.value.what == f"{url} cannot be reached."
    assert "HF_ENDPOINT" in caught.value.next_step


def test_rate_limit_suggests_login(fake, hub):
    fake.status, fake.headers = 429, {"Retry-After": "0"}
    with pytest.raises(SourceError, match="The hub's rate limit was exceeded") as caught:
        fetch(hub)
    assert "`hf auth login`" in caught.value.next_step


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"{}"], ids=["page", "[]", "{}"])
def test_reports_a_response_that_is_not_the_hubs(fake, hub, body):
    fake.body = body
    with pytest.raises(SourceError) as caught:
        fetch(hub)
    assert str(caught.value) == (
        f"The response from {fake.url} did not come from the hub.\n"
        "Why: the response is neither a file list nor a file; possible causes are a proxy, a "
        "login page or a wrong HF_ENDPOINT\n"
        f"Next: inspect the response with `curl -sI {fake.url}`, then check HTTPS_PROXY and "
        "HF_ENDPOINT"
    )


def test_rejects_endpoint_without_a_scheme(hub):
    with pytest.raises(BadInput, match=r"hub.example is not a valid Hugging Face Hub address"):
        fetch(replace(hub, endpoint="hub.example"))


def test_offline_mode_sends_no_requests(fake, hub):
    online = fetch(hub)
    fake.requests.clear()
    assert fetch(replace(hub, is_offline=True)) == online
    assert fake.requests == []


def test_offline_mode_reports_a_model_that_is_not_cached(fake, hub):
    with pytest.raises(SourceError) as caught:
        fetch(replace(hub, is_offline=True))
    assert str(caught.value) == (
        "hf:acme/tiny was not fetched from the hub.\n"
        "Why: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so only the cache is used\n"
        "Next: run `unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE`, or download the model to the "
        f"cache ({hub.cache}) while the hub can be reached"
    )
    assert fake.requests == []


def test_offline_mode_reports_what_a_partial_copy_lacks(fake, hub):
    (fetch(hub).path / "model.safetensors").unlink()
    with pytest.raises(
        SourceError, match="The checkpoint in the Hugging Face cache cannot be used instead"
    ) as caught:
        fetch(replace(hub, is_offline=True))
    assert (
        "the checkpoint contains neither *.safetensors files nor pickled weights"
        in caught.value.why
    )


def test_uses_cached_copy_without_a_network(tmp_path):
    with serve(FakeHub(hf_files())) as fake:
        hub = Hub(fake.url, tmp_path / "cache")
        online = fetch(hub, HubSource("acme/tiny", "main"))
    messages: list[str] = []
    assert fetch(hub, HubSource("acme/tiny", "main"), messages) == online
    assert messages == [
        f"{hub.url} cannot be reached. Using the copy in the cache, commit {COMMIT}."
    ]


def test_rejects_incomplete_copy_without_a_network(tmp_path):
    with serve(FakeHub(hf_files())) as fake:
        hub = Hub(fake.url, tmp_path / "cache")
        folder = fetch(hub, HubSource("acme/tiny", "main")).path
    (folder / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="cannot be reached"):
        fetch(hub, HubSource("acme/tiny", "main"))


def test_rejects_code_before_the_download(fake, hub):
    fake.files.update(hf_files(auto_map={"AutoModel": "modeling.Tiny"}))
    with pytest.raises(UnsafeCheckpoint, match=r"auto_map in config.json refers to modeling.Tiny"):
        fetch(hub)
    assert "model.safetensors" not in fake.downloaded()


def test_downloads_trusted_code(fake, hub):
    fake.files.update(hf_files(auto_map={"AutoModel": "modeling.Tiny"}), **{"modeling.py": b""})
    assert (fetch(hub, trust_remote_code=True).path / "modeling.py").exists()


def test_rejects_pickles_before_the_download(fake, hub):
    fake.files["pytorch_model.bin"] = fake.files.pop("model.safetensors")
    with pytest.raises(UnsafeCheckpoint, match=r"contains pytorch_model.bin, but no"):
        fetch(hub)
    assert "pytorch_model.bin" not in fake.downloaded()


def test_downloads_allowed_pickles(fake, hub):
    fake.files["pytorch_model.bin"] = fake.files.pop("model.safetensors")
    assert (fetch(hub, allow_pickle=True).path / "pytorch_model.bin").exists()


def test_detects_missing_shard_before_the_download(fake, hub):
    fake.files["model-1.safetensors"] = fake.files.pop("model.safetensors")
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    fake.files["model.safetensors.index.json"] = json.dumps({"weight_map": shards}).encode()
    with pytest.raises(SourceError, match=r"should contain model-2.safetensors"):
        fetch(hub)
    assert "model-1.safetensors" not in fake.downloaded()


def test_detects_full_disk_before_the_download(fake, hub):
    with pytest.raises(SourceError, match="does not have enough space"):
        fetch(replace(hub, free=lambda folder: 10))
    assert "model.safetensors" not in fake.downloaded()


def test_unwritable_cache_names_the_folder(fake, hub):
    hub.cache.write_text("a file is in the way")
    with pytest.raises(SourceError, match="cannot be written to the Hugging Face cache") as caught:
        fetch(hub)
    assert str(hub.cache) in caught.value.why


def test_gguf_repository_has_a_next_step(fake, hub):
    fake.files = {"tiny.Q4_0.gguf": b"GGUF"}
    with pytest.raises(SourceError, match=r"the source contains GGUF files: tiny.Q4_0.gguf"):
        fetch(hub)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, Hub(None, Path("/c"))),
        ({"HF_HOME": "/h", "HF_ENDPOINT": "http://hub/"}, Hub("http://hub", Path("/h/hub"))),
        ({"HF_HOME": "/h", "HF_HUB_OFFLINE": "1"}, Hub(None, Path("/h/hub"), is_offline=True)),
        ({"XDG_CACHE_HOME": "/x"}, Hub(None, Path("/x/huggingface/hub"))),
        ({}, Hub(None, Path.home() / ".cache/huggingface/hub")),
    ],
    ids=["HF_HUB_CACHE", "HF_HOME", "offline", "XDG_CACHE_HOME", "default"],
)
def test_finds_hub_from_its_environment_variables(environ, expected):
    assert find_hub(environ) == expected
