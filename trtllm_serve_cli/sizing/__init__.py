"""Estimate the memory and speed of a model on a GPU, from its config alone.

Input: a source's config.json and index, or a GGUF file's header, and a card in `gpus.yaml`. Output:
a `ModelShape` with the number of parameters by layer type, and a `SizePlan` with the memory use of
each GPU, the number of concurrent sequences and the speed. This package does not read weights,
does not need a GPU and only writes to the hub's cache.
"""
