"""An embedding model is imported, served by Triton and used through every interface."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc as grpcclient

from tests.e2e.conftest import Tllm
from tests.ports import free_ports

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("optimum"),
    reason="needs the extra `convert`: see the Makefile",
)

TEXTS = ["hello", "what is ml", "a much longer text"]
MAX_LENGTH = 24
# A BERT with two layers, random weights and one token per letter, in the format of
# sentence-transformers. The script also prints the embeddings that PyTorch computes for the texts.
# argv: the destination and the texts as JSON.
MAKE_CHECKPOINT = """
import json, sys, torch
from pathlib import Path
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
folder, texts = Path(sys.argv[1]), json.loads(sys.argv[2])
torch.manual_seed(0)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
letters = [chr(97 + each) for each in range(26)]
words += letters + ["##" + each for each in letters]
tokenizer = Tokenizer(models.WordPiece({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
# As in many published checkpoints, the tokenizer truncates and pads by default.
tokenizer.enable_truncation(8)
tokenizer.enable_padding(length=8)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
    sep_token="[SEP]", model_max_length=24)
fast.save_pretrained(folder)
config = BertConfig(
    vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, max_position_embeddings=64, initializer_range=0.3,
    matryoshka_dimensions=[8, 16])
model = BertModel(config).eval()
model.save_pretrained(folder)
modules = ["Transformer", "Pooling", "Normalize"]
(folder / "modules.json").write_text(json.dumps([
    {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "",
     "type": f"sentence_transformers.models.{name}"} for n, name in enumerate(modules)]))
(folder / "1_Pooling").mkdir()
(folder / "1_Pooling" / "config.json").write_text(json.dumps(
    {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}))
(folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))
(folder / "config_sentence_transformers.json").write_text(
    json.dumps({"prompts": {"query": "find "}}))
vectors = []
for text in texts:
    ids = torch.tensor([fast.encode(text)])
    with torch.no_grad():
        hidden = model(ids, torch.ones_like(ids)).last_hidden_state
    vectors.append(torch.nn.functional.normalize(hidden.mean(dim=1))[0].tolist())
print(json.dumps(vectors))
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Make the checkpoint, and return it with the embeddings of `TEXTS`."""
    folder = tmp_path_factory.mktemp("bert")
    command = (sys.executable, "-c", MAKE_CHECKPOINT, str(folder), json.dumps(TEXTS))
    made = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    return folder, json.loads(made.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def served(
    reference: tuple[Path, list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tllm]:
    """Serve the model twice: as `bert` with OpenVINO, and as `simulated`."""
    tllm = Tllm(tmp_path_factory.mktemp("embeddings") / "home")
    source = f"local:{reference[0]}"
    tllm.done("import", "-m", "bert", "-s", source)
    timing = reference[0].parent / "timing.json"
    timing.write_text(json.dumps({"schema": 1, "timing": {"step_s": 0.001}}))
    tllm.done("import", "-m", "simulated", "-s", source, "--engine", "sim", "--timing", str(timing))
    port = free_ports(1)[0]
    started = tllm.start("-m", "bert", "-m", "simulated", "--openai", f"--openai-port={port}")
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.fixture(scope="module")
def client(served: Tllm) -> Iterator[openai.OpenAI]:
    base_url = f"{served.status()['openai']}/v1"
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        yield client


def check_close(found: Any, expected: Any) -> None:
    """Check embeddings with the precision of 16-bit weights and activations."""
    found, expected = np.atleast_2d(found), np.atleast_2d(expected)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-4)
    cosines = (found * expected).sum(axis=1)
    np.testing.assert_allclose(cosines, 1, atol=2e-3)


def test_embeddings_are_those_of_the_checkpoint(
    client: openai.OpenAI, reference: tuple[Path, list[Any]]
) -> None:
    answer = client.embeddings.create(model="bert", input=TEXTS)
    check_close([each.embedding for each in answer.data], reference[1])
    assert [each.index for each in answer.data] == [0, 1, 2]
    # Each letter is a token, between two special tokens.
    assert answer.usage.prompt_tokens == sum(len(each.replace(" ", "")) + 2 for each in TEXTS)
    floats = client.embeddings.create(model="bert", input=TEXTS[0], encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(answer.data[0].embedding, abs=1e-3)


def test_embedding_does_not_depend_on_the_batch(client: openai.OpenAI) -> None:
    alone = client.embeddings.create(model="bert", input="hello").data[0].embedding
    among = client.embeddings.create(model="bert", input=["hello", *TEXTS] * 50)
    check_close([each.embedding for each in among.data[::4]], [alone] * 50)


def test_openvino_genai_computes_the_same_embeddings(client: openai.OpenAI, served: Tllm) -> None:
    import openvino_genai

    kind = openvino_genai.TextEmbeddingPipeline
    pipeline = kind(
        served.engine("bert"), "CPU", pooling_type=kind.PoolingType.MEAN, normalize=True
    )
    answer = client.embeddings.create(model="bert", input=TEXTS)
    check_close([each.embedding for each in answer.data], pipeline.embed_documents(TEXTS))


def test_infer_prints_the_embedding(served: Tllm, reference: tuple[Path, list[Any]]) -> None:
    for interface in ("grpc", "http"):
        answer = json.loads(served.done("infer", "-m", "bert", "-i", interface, "hello", "--json"))
        check_close(answer["embedding"], reference[1][0])
        assert (answer["dimension"], answer["num_input_tokens"]) == (32, 7)
    shown = served("infer", "-m", "bert", "hello")
    first, *_ = shown.stdout.strip("[\n").split(", ")
    assert float(first) == pytest.approx(reference[1][0][0], abs=2e-2)
    assert "32 values, 7 input tokens" in shown.stderr
    refused = served("infer", "-m", "bert", "hello", "--temperature", "1")
    assert (refused.returncode, "--temperature" in refused.stderr) == (2, True)


def test_triton_serves_rows_and_shorter_embeddings(
    served: Tllm, reference: tuple[Path, list[Any]]
) -> None:
    text = grpcclient.InferInput("text_input", [3, 1], "BYTES")
    text.set_data_from_numpy(np.array([[each.encode()] for each in TEXTS], dtype=object))
    size = grpcclient.InferInput("dimensions", [3, 1], "INT32")
    size.set_data_from_numpy(np.full((3, 1), 8, dtype=np.int32))
    with grpcclient.InferenceServerClient(served.endpoint().grpc) as triton:
        found = triton.infer("bert", [text, size]).as_numpy("embedding")
    expected = np.array(reference[1])[:, :8]
    check_close(found, expected / np.linalg.norm(expected, axis=1, keepdims=True))


def test_api_shortens_embeddings_and_refuses_other_sizes(client: openai.OpenAI) -> None:
    whole = np.array(client.embeddings.create(model="bert", input="hello").data[0].embedding)
    shorter = client.embeddings.create(model="bert", input="hello", dimensions=16)
    check_close(shorter.data[0].embedding, whole[:16] / np.linalg.norm(whole[:16]))
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="bert", input="hello", dimensions=5)
    assert refused.value.param == "dimensions"


def test_long_inputs_are_refused_or_cut(client: openai.OpenAI) -> None:
    longest = "a" * (MAX_LENGTH - 2)
    cut = client.embeddings.create(
        model="bert", input=longest + "bcd", extra_body={"truncate_prompt_tokens": -1}
    )
    whole = client.embeddings.create(model="bert", input=longest)
    assert whole.usage.prompt_tokens == cut.usage.prompt_tokens == MAX_LENGTH
    check_close(cut.data[0].embedding, whole.data[0].embedding)
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="bert", input=longest + "b")
    assert refused.value.code == "context_length_exceeded"


def test_prompt_is_prepended_by_name(client: openai.OpenAI) -> None:
    named = client.embeddings.create(
        model="bert", input="hello", extra_body={"prompt_name": "query"}
    )
    plain = client.embeddings.create(model="bert", input="find hello")
    check_close(named.data[0].embedding, plain.data[0].embedding)


def test_models_are_listed_and_do_not_generate(client: openai.OpenAI) -> None:
    assert sorted(each.id for each in client.models.list()) == ["bert", "simulated"]
    with pytest.raises(openai.BadRequestError, match="computes embeddings"):
        client.chat.completions.create(model="bert", messages=[{"role": "user", "content": "a"}])


def test_simulated_embeddings_depend_only_on_the_tokens(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="simulated", input=["abc", "xyz", "abc", "abd"])
    one, far, same, near = (np.array(each.embedding) for each in answer.data)
    assert one.tolist() == same.tolist()
    assert one @ near > one @ far
