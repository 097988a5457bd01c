"""The model catalog, which maps aliases (short names) of models to their sources.

The table is `models.yaml` in this package. Aliases are case-insensitive. An entry's `parameters`
and `gated` are only used for tables and estimates: the checkpoint and the hub are authoritative.
"""
