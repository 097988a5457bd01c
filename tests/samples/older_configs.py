"""The shape-related values in config.json of older models, many of which Transformers lacks."""

from __future__ import annotations

from typing import Any

from tests.samples import configs

FALCON_40B_RW: dict[str, Any] = {
    "architectures": ["RWForCausalLM"],
    "model_type": "RefinedWeb",
    "alibi": False,
    "bias": False,
    "hidden_size": 8192,
    "n_head": 128,
    "n_head_kv": 8,
    "n_layer": 60,
    "parallel_attn": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 65024,
}
FALCON_7B_RW = FALCON_40B_RW | {
    "model_type": "RefinedWebModel",
    "hidden_size": 4544,
    "multi_query": True,
    "n_head": 71,
    "n_head_kv": None,
    "n_layer": 32,
}
INTERNLM_7B = configs.LLAMA_2_7B | {
    "architectures": ["InternLMForCausalLM"],
    "model_type": "internlm",
    "bias": True,
    "vocab_size": 103168,
}
QWEN_7B = configs.LLAMA_2_7B | {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "intermediate_size": 22016,
    "kv_channels": 128,
    "seq_length": 8192,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
SKYWORK_13B = configs.LLAMA_2_7B | {
    "architectures": ["SkyworkForCausalLM"],
    "model_type": "skywork",
    "hidden_size": 4608,
    "intermediate_size": 12288,
    "num_attention_heads": 36,
    "num_hidden_layers": 52,
    "num_key_value_heads": 36,
    "vocab_size": 65519,
}
BAICHUAN_13B = configs.LLAMA_2_7B | {
    "architectures": ["BaichuanForCausalLM"],
    "model_type": "baichuan",
    "hidden_size": 5120,
    "intermediate_size": 13696,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 40,
    "vocab_size": 64000,
}
DBRX = {
    "architectures": ["DbrxForCausalLM"],
    "model_type": "dbrx",
    "attn_config": {"kv_n_heads": 8},
    "d_model": 6144,
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    "max_seq_len": 32768,
    "n_heads": 48,
    "n_layers": 40,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 100352,
}
EXAONE_3_8B = configs.LLAMA_3_1_8B | {
    "architectures": ["ExaoneForCausalLM"],
    "model_type": "exaone",
    "num_hidden_layers": None,
    "num_layers": 32,
    "vocab_size": 102400,
}
PHI_3_5_MOE = configs.MIXTRAL_8X22B | {
    "architectures": ["PhiMoEForCausalLM"],
    "model_type": "phimoe",
    "attention_bias": True,
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "vocab_size": 32064,
}
DEEPSEEK_MOE_16B = configs.LLAMA_2_7B | {
    "architectures": ["DeepseekForCausalLM"],
    "model_type": "deepseek",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
}
PHI_3_SMALL = {
    "architectures": ["Phi3SmallForCausalLM"],
    "model_type": "phi3small",
    "ff_intermediate_size": 14336,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "vocab_size": 100352,
}
JAIS_13B = {
    "architectures": ["JAISLMHeadModel"],
    "model_type": "jais",
    "n_embd": 5120,
    "n_head": 40,
    "n_inner": 13653,
    "n_layer": 40,
    "n_positions": 2048,
    "torch_dtype": "float32",
    "vocab_size": 84992,
}
MINITRON_4B = configs.LLAMA_2_7B | {
    "architectures": ["NemotronForCausalLM"],
    "model_type": "nemotron",
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_attention_heads": 24,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 256000,
}
