"""Estimate the memory and speed of a model on GPUs without reading its weights.

The inputs are a GPU type from `gpus.yaml` and a model's metadata: config.json and the safetensors
index, or a GGUF header. The outputs are a `ModelShape` with the architecture's dimensions and a
`SizePlan`. A plan contains the number of parameters by layer type, the memory use per GPU, the
number of concurrent sequences, and the speed. This package does not require a GPU, and it writes
only to the Hugging Face cache.
"""
