"""A Hugging Face checkpoint is exported and served."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Tllm

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("optimum"),
    reason="needs the extra `convert`: see the Makefile",
)

# A Llama with two layers, random weights and a byte-level tokenizer. The script also prints the
# tokens that PyTorch generates. With this seed, the logits of the most likely token and of the next
# one differ by at least 0.5 for each token of `PROMPT`, so that weights of 8 bits do not change
# the tokens. argv: the destination, the prompt and the number of tokens.
MAKE_CHECKPOINT = """
import json, sys, torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder, prompt, num_tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(18)
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
    bos_token_id=0, eos_token_id=1, initializer_range=0.2)
model = LlamaForCausalLM(config).to(torch.bfloat16)
model.save_pretrained(folder)
fast.save_pretrained(folder)
ids = torch.tensor([fast.encode(prompt)])
tokens = model.float().generate(
    ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
print(json.dumps(tokens[0, ids.shape[1]:].tolist()))
"""
# The demo model as a Hugging Face checkpoint. argv: the GGUF file and the destination.
MAKE_DEMO_CHECKPOINT = """
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
PROMPT = "hello world"
NUM_TOKENS = 6
DECLARED = """\
model: {name: tiny, source: "local:checkpoint"}
build: {quantization: int8, max_batch_size: 8}
repository: {parameters: {max_queue_size: 5}}
launch: {timeout_s: 200}
"""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in its folder, and the tokens that PyTorch generates with it."""

    folder: Path
    tokens: list[int]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("exported") / "checkpoint"
    words = (str(folder), PROMPT, str(NUM_TOKENS))
    command = (sys.executable, "-W", "ignore", "-c", MAKE_CHECKPOINT, *words)
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    return Checkpoint(folder, json.loads(made.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def exported(checkpoint: Checkpoint) -> Iterator[Tllm]:
    """Import the checkpoint from a declaration, and serve it."""
    folder = checkpoint.folder.parent
    (folder / "tllm.yaml").write_text(DECLARED)
    tllm = Tllm(folder / "home")
    tllm.done("import", "-f", str(folder / "tllm.yaml"))
    started = tllm.start()
    assert started.returncode == 0, started.stdout + started.stderr
    yield tllm
    tllm("stop", "--all")


@pytest.mark.timeout(900)
def test_engine_file_describes_the_engine(exported: Tllm) -> None:
    engine = json.loads((exported.engine("tiny") / "engine.json").read_text())
    facts = {key: engine[key] for key in ("architecture", "weights", "max_position_embeddings")}
    assert facts == {
        "architecture": "LlamaForCausalLM",
        "weights": "int8",
        "max_position_embeddings": 256,
    }
    assert engine["chat_template"].startswith("{% for m in messages %}")


def test_exported_engine_generates_the_tokens_of_the_checkpoint(
    exported: Tllm, checkpoint: Checkpoint
) -> None:
    words = ("infer", PROMPT, "--max-tokens", str(NUM_TOKENS))
    answer = json.loads(exported.done(*words, "--raw", "--show-tokens", "--json"))
    assert answer["output_ids"] == [checkpoint.tokens]
    assert exported.done(*words) == exported.done(*words, "--no-stream")


def test_declaration_is_exported(exported: Tllm, checkpoint: Checkpoint) -> None:
    assert yaml.safe_load(exported.done("export", "tiny")) == {
        "model": {"name": "tiny", "source": f"local:{checkpoint.folder}"},
        "engine": {"kind": "openvino"},
        "build": {"quantization": "int8", "max_batch_size": 8},
        "repository": {"parameters": {"max_queue_size": "5"}},
        "launch": {"timeout_s": 200.0},
    }
    (engine,) = json.loads(exported.done("list", "--engines", "--json"))
    used_by = [str(exported.home / "models" / "tiny")]
    assert (engine["weights"], engine["used_by"]) == ("int8", used_by)


def test_other_weights_are_built_too(checkpoint: Checkpoint, tmp_path: Path) -> None:
    tllm = Tllm(tmp_path / "home")
    source = ("-s", f"local:{checkpoint.folder}", "--quantization", "int4")
    tllm.done("import", "-m", "tiny", *source)
    folder = tmp_path / "none"
    tllm.done("build", "-m", "tiny", "--engine-dir", str(folder), "--quantization", "none")
    for engine, weights in ((tllm.engine("tiny"), "int4"), (folder, "none")):
        assert json.loads((engine / "engine.json").read_text())["weights"] == weights


@pytest.mark.timeout(900)
def test_checkpoint_of_the_demo_model_is_exported(
    request: pytest.FixtureRequest, tmp_path: Path, is_full: bool
) -> None:
    if not is_full:
        pytest.skip("exports a model of 30 layers: use --full")
    imported_demo: Tllm = request.getfixturevalue("imported_demo")
    (gguf,) = imported_demo.home.glob("checkpoints/*/*.gguf")
    command = (sys.executable, "-W", "ignore", "-c", MAKE_DEMO_CHECKPOINT)
    subprocess.run((*command, str(gguf), str(tmp_path / "checkpoint")), check=True)
    tllm = Tllm(tmp_path / "home")
    tllm.done("import", "-m", "real", "-s", f"local:{tmp_path / 'checkpoint'}")
    words = ("infer", "--no-server", "--raw", "The capital of France is", "--max-tokens", "8")
    assert "Paris" in tllm.done(*words)
