"""The model catalog, which maps aliases (short names) of models to their sources.

The catalog is the file `models.yaml` in this package. Aliases are case-insensitive. The fields
`parameters` and `gated` are used only for tables and estimates. Elsewhere, tllm reads these facts
from the checkpoint and the hub.
"""
