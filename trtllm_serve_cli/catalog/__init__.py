"""The model catalog, which maps aliases (short names) of models to their sources.

The table is `models.yaml` in this package. Aliases are case-insensitive. The fields `parameters`
and `gated` are used only for tables and estimates, because the checkpoint and the hub are
authoritative.
"""
