"""A Hugging Face checkpoint is exported and served."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Tllm

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("optimum"),
    reason="needs the extra `convert`: see the Makefile",
)

# A Llama with two layers, random weights and a byte-level tokenizer. argv: the destination.
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

# The demo model as a Hugging Face checkpoint. argv: the GGUF file and the destination.
MAKE_REAL_CHECKPOINT = """
import sys, torch
from pathlib import Path
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
gguf, folder = Path(sys.argv[1]), sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
model.to(torch.bfloat16).save_pretrained(folder)
fields = {name: field.contents() for name, field in GGUFReader(gguf).fields.items()}
tokens = fields["tokenizer.ggml.tokens"]
merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False)])
tokenizer.decoder = decoders.ByteLevel()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>",
    chat_template=fields["tokenizer.chat_template"]).save_pretrained(folder)
"""
DECLARED = """\
model: {name: real, source: "local:checkpoint"}
build: {quantization: int8, max_batch_size: 8}
repository: {parameters: {max_queue_size: 5}}
launch: {timeout_s: 200}
"""


@pytest.fixture(scope="module")
def real(imported: Tllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tllm]:
    """Import the demo model's checkpoint from a declaration, and serve it."""
    folder = tmp_path_factory.mktemp("real")
    (gguf,) = imported.home.glob("checkpoints/*/*.gguf")
    command = (sys.executable, "-W", "ignore", "-c", MAKE_REAL_CHECKPOINT, str(gguf))
    subprocess.run((*command, str(folder / "checkpoint")), check=True, capture_output=True)
    (folder / "tllm.yaml").write_text(DECLARED)
    tllm = Tllm(folder / "home")
    tllm.done("import", "-f", str(folder / "tllm.yaml"))
    started = tllm.start()
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.mark.timeout(900)
def test_engine_file_describes_the_engine(real: Tllm) -> None:
    engine = json.loads((real.engine("real") / "engine.json").read_text())
    facts = {key: engine[key] for key in ("architecture", "weights", "max_position_embeddings")}
    assert facts == {
        "architecture": "LlamaForCausalLM",
        "weights": "int8",
        "max_position_embeddings": 8192,
    }
    assert engine["chat_template"].startswith("{% for message in messages %}")


def test_exported_engine_is_served(real: Tllm) -> None:
    words = ("infer", "What is ML?", "--max-tokens", "16")
    answer = json.loads(real.done(*words, "--json"))
    assert answer["num_output_tokens"] == 16
    assert real.done(*words) == real.done(*words, "--no-stream")
    raw = real.done("infer", "--raw", "The capital of France is", "--max-tokens", "8")
    assert "Paris" in raw


def test_declaration_is_exported(real: Tllm) -> None:
    exported = yaml.safe_load(real.done("export", "real"))
    assert exported == {
        "model": {"name": "real", "source": f"local:{real.home.parent / 'checkpoint'}"},
        "engine": {"kind": "openvino"},
        "build": {"quantization": "int8", "max_batch_size": 8},
        "repository": {"parameters": {"max_queue_size": "5"}},
        "launch": {"timeout_s": 200.0},
    }
    (engine,) = json.loads(real.done("list", "--engines", "--json"))
    used_by = [str(real.home / "models" / "real")]
    assert (engine["weights"], engine["used_by"]) == ("int8", used_by)


def test_other_weights_are_built_too(tmp_path: Path) -> None:
    command = (sys.executable, "-W", "ignore", "-c", MAKE_CHECKPOINT, str(tmp_path / "tiny"))
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    tllm = Tllm(tmp_path / "home")
    source = ("-s", f"local:{tmp_path / 'tiny'}", "--quantization", "int4")
    tllm.done("import", "-m", "tiny", *source)
    folder = tmp_path / "none"
    tllm.done("build", "-m", "tiny", "--engine-dir", str(folder), "--quantization", "none")
    for engine, weights in ((tllm.engine("tiny"), "int4"), (folder, "none")):
        assert json.loads((engine / "engine.json").read_text())["weights"] == weights
