"""Create checkpoints for the GPU check: a shape without weights, and small models with weights.

Both have a real word-level tokenizer (`w17`): a text of n words has n tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_serve_cli.runtime.lora.safetensors import write_safetensors

BOS, EOS = 1, 2
LLAMA_2_7B = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
# With grouped-query attention, the KV cache has room for 1,024 streams.
MISTRAL_7B = {**LLAMA_2_7B, "intermediate_size": 14336, "num_key_value_heads": 8}
SMALL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2048,
    "max_position_embeddings": 1024, "torch_dtype": "float16",
}  # fmt: skip
# The shape of many embedding models, for example of BAAI/bge-base-en-v1.5.
BERT_BASE = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "vocab_size": 2048, "max_position_embeddings": 512,
    "type_vocab_size": 2, "torch_dtype": "float16",
}  # fmt: skip
# Large enough that each token depends on the whole prompt: with 0.02, changing an early token of
# the prompts changed no greedy response.
_LAYER_STD = 0.06


def write_shape(folder: Path, shape: dict[str, Any]) -> Path:
    """Write a Llama checkpoint without weights, for `load_format=dummy`."""
    write_config(folder, shape)
    # The checks of a checkpoint require a weight file. vLLM does not open it with dummy weights.
    empty = write_safetensors({"model.norm.weight": np.ones(shape["hidden_size"], np.float16)})
    (folder / "model.safetensors").write_bytes(empty)
    _write_tokenizer(folder, shape["vocab_size"])
    return folder


def write_config(folder: Path, shape: dict[str, Any]) -> Path:
    """Write only config.json, for `tllm plan`. With a weight file, the plan would use its size."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "initializer_range": 0.02, "use_cache": True, "attention_bias": False,
        "bos_token_id": BOS, "eos_token_id": EOS, **shape,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_small(folder: Path, seed: int = 0) -> Path:
    """Write a Llama checkpoint with random weights that usually prefers one token clearly.

    The output layer consists of the embeddings, shifted by one, and noise. The margin of the most
    likely token is thus usually larger than numerical differences between kernels.
    """
    write_shape(folder, SMALL)
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = SMALL["hidden_size"], SMALL["intermediate_size"], SMALL["vocab_size"]
    keys = hidden * SMALL["num_key_value_heads"] // SMALL["num_attention_heads"]

    def random(*shape: int, std: float = _LAYER_STD) -> np.ndarray[Any, Any]:
        return rng.normal(0, std, shape).astype(np.float16)

    embeddings = random(vocab, hidden, std=1.0)
    tensors = {
        "model.embed_tokens.weight": embeddings,
        "lm_head.weight": np.roll(embeddings, 1, axis=0) + random(vocab, hidden, std=0.5),
        "model.norm.weight": np.ones(hidden, np.float16),
    }
    shapes = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    for layer in range(SMALL["num_hidden_layers"]):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = random(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(hidden, np.float16)
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors))
    return folder


def write_bert(folder: Path, seed: int = 0) -> Path:
    """Write a BERT embedding checkpoint with random weights, in sentence-transformers' format.

    The embedding of a text is the normalized mean of the hidden states of its tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "pad_token_id": EOS,
        **BERT_BASE,
    }  # fmt: skip
    files = {
        "config.json": config,
        "modules.json": [
            {"idx": number, "name": str(number), "path": f"{number}_{name}" if number else "",
             "type": f"sentence_transformers.models.{name}"}
            for number, name in enumerate(("Transformer", "Pooling", "Normalize"))
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": BERT_BASE["hidden_size"], "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": BERT_BASE["max_position_embeddings"]},
    }  # fmt: skip
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    _write_tokenizer(folder, BERT_BASE["vocab_size"])
    rng = np.random.default_rng(seed)
    hidden, inner = BERT_BASE["hidden_size"], BERT_BASE["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings": (BERT_BASE["vocab_size"], hidden),
        "embeddings.position_embeddings": (BERT_BASE["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings": (BERT_BASE["type_vocab_size"], hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(BERT_BASE["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}"
        shapes |= {
            f"{prefix}.attention.self.{name}": (hidden, hidden)
            for name in ("query", "key", "value")
        }
        shapes |= {
            f"{prefix}.attention.output.dense": (hidden, hidden),
            f"{prefix}.intermediate.dense": (inner, hidden),
            f"{prefix}.output.dense": (hidden, inner),
        }
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
    tensors: dict[str, Any] = {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = rng.normal(0, _LAYER_STD, shape).astype(np.float16)
        if not name.startswith("embeddings."):
            tensors[f"{name}.bias"] = np.zeros(shape[0], np.float16)
    for name in norms:
        tensors[f"{name}.weight"] = np.ones(hidden, np.float16)
        tensors[f"{name}.bias"] = np.zeros(hidden, np.float16)
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors))
    return folder


def text_of(token_ids: list[int]) -> str:
    """Return the text with these tokens."""
    return " ".join(f"w{token}" for token in token_ids)


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    special = ["<unk>", "<s>", "</s>"]
    vocab = {text: number for number, text in enumerate(special)}
    vocab |= {f"w{number}": number for number in range(len(special), vocab_size)}
    added = [
        {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for number, text in enumerate(special)
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "unk_token": "<unk>", "pad_token": "</s>", "add_bos_token": False,
        "chat_template": "{% for message in messages %}{{ message.content }} {% endfor %}",
        "model_max_length": 4096, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
