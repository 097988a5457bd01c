"""Parameter counts, compared with the models that Transformers builds from the configs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.samples import configs
from trtllm_serve_cli.sizing.parameters import count_parameters
from trtllm_serve_cli.sizing.shape import parse_shape

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="needs transformers: pip install 'trtllm-serve-cli[convert]'",
)

_SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "pad_token_id": None,
}
_MODELS: dict[str, dict[str, Any]] = {
    **{name: config for name, config in vars(configs).items() if name.isupper()},
    "cohere": _SMALL | {"model_type": "cohere", "use_qk_norm": True},
    "cohere2": _SMALL | {"model_type": "cohere2"},
    "falcon with everything": {
        "model_type": "falcon", "alibi": True, "bias": True, "multi_query": False,
        "parallel_attn": False, "hidden_size": 256, "num_attention_heads": 8,
        "num_hidden_layers": 3, "vocab_size": 1000,
    },
    "falcon with one norm": {
        "model_type": "falcon", "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1,
        "hidden_size": 256, "num_attention_heads": 8, "num_kv_heads": 2, "num_hidden_layers": 3,
        "vocab_size": 1000,
    },
    "gemma": _SMALL | {"model_type": "gemma", "head_dim": 256},
    "gpt_bigcode": {"model_type": "gpt_bigcode", "n_embd": 256, "n_inner": 1024, "n_layer": 3,
                    "n_head": 8, "n_positions": 512, "vocab_size": 1000},
    "granite": _SMALL | {"model_type": "granite", "attention_bias": True, "mlp_bias": True},
    "llama with biases": _SMALL | {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "olmo2": _SMALL | {"model_type": "olmo2"},
    "smollm3": _SMALL | {"model_type": "smollm3"},
}  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
# Models whose code is shipped with their weights.
_ELSEWHERE = ("BAICHUAN_2_7B", "CHATGLM_3_6B", "INTERNLM_2_7B")


_COMPARED = [name for name in _MODELS if name not in _ELSEWHERE]


@pytest.mark.parametrize("name", _COMPARED)
def test_counts_match_transformers(name: str, transformers_counts: dict[str, int]) -> None:
    config = _with_few_layers(_MODELS[name])
    assert count_parameters(parse_shape(config)).total == transformers_counts[name]


@pytest.fixture(scope="module")
def transformers_counts() -> dict[str, int]:
    """Return the parameter counts of Transformers' models by name.

    A child process counts them, because tests of tokenizers in this process import
    Transformers without PyTorch, and Transformers remembers that.
    """
    configs_by_name = {name: _with_few_layers(_MODELS[name]) for name in _COMPARED}
    done = subprocess.run(
        [sys.executable, "-m", "tests.sizing.transformers_counts"],
        input=json.dumps(configs_by_name),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def _with_few_layers(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with four layers, which are enough for the comparison."""
    text = config.get("text_config", config)
    small = {**text, **{key: 4 for key in _LAYERS if key in text}}
    small.pop("layer_types", None)
    return config | {"text_config": small} if "text_config" in config else small
