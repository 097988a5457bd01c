"""Estimate the memory and speed of a model on GPUs without reading its weights.

Input: a source's config.json and index, or a GGUF file's header, and a card in `gpus.yaml`. Output:
a `ModelShape` with the architecture's dimensions, and a `SizePlan` with the number of parameters by
layer type, the memory use of a GPU, the number of concurrent sequences and the speed. This package
does not need a GPU, and only writes to the hub's cache.
"""
