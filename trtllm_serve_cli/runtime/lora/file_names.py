"""The names of the files in an adapter's folder, in PEFT and TensorRT-LLM format.

This module imports nothing, because commands that do not read adapters also use the names.
"""

PEFT_CONFIG = "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"
LORA_WEIGHTS = "model.lora_weights.npy"
LORA_CONFIG = "model.lora_config.npy"
