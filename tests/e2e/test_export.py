"""A Hugging Face checkpoint on its whole way: exported, served, asked."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Tllm

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not importlib.util.find_spec("optimum"),
        reason="needs the extra `convert`: see the Makefile",
    ),
]

# A Llama with two layers and random weights, and a byte-level tokenizer: argv is where they go.
MAKE_CHECKPOINT = """
import sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
torch.manual_seed(0)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=400, special_tokens=["<s>", "</s>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator(["hello world, this is a tiny tokenizer"] * 4, trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\\n{% endfor %}"
config = LlamaConfig(
    vocab_size=len(fast), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    bos_token_id=0, eos_token_id=1)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
fast.save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    command = (sys.executable, "-W", "ignore", "-c", MAKE_CHECKPOINT, str(folder))
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Tllm]:
    """A home with the checkpoint imported, with the default INT8 weights."""
    tllm = Tllm(tmp_path_factory.mktemp("export") / "home")
    result = tllm("import", "-m", "tiny", "-s", f"local:{checkpoint}")
    assert result.returncode == 0, result.stderr
    yield tllm
    tllm("stop", "--all")


def test_the_engine_says_what_it_is(tiny: Tllm) -> None:
    engine = json.loads((tiny.engine("tiny") / "engine.json").read_text())
    facts = {key: engine[key] for key in ("architecture", "weights", "max_position_embeddings")}
    assert facts == {
        "architecture": "LlamaForCausalLM",
        "weights": "int8",
        "max_position_embeddings": 256,
    }
    assert engine["chat_template"].startswith("{% for m in messages %}")


def test_it_is_served_and_answers(tiny: Tllm) -> None:
    assert tiny.start().returncode == 0
    answer = json.loads(tiny.done("infer", "hello world", "--max-tokens", "16", "--json"))
    assert answer["num_output_tokens"] == 16
    streamed = tiny.done("infer", "hello world", "--max-tokens", "16")
    assert streamed == tiny.done("infer", "hello world", "--max-tokens", "16", "--no-stream")


@pytest.mark.parametrize("quantization", ["int4", "none"])
def test_other_weights_are_built_too(tiny: Tllm, quantization: str, tmp_path: Path) -> None:
    folder = tmp_path / quantization
    words = ("--engine-dir", str(folder), "--quantization", quantization)
    tiny.done("build", "-m", "tiny", *words)
    assert json.loads((folder / "engine.json").read_text())["weights"] == quantization
