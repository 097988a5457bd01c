"""The catalog: short names (aliases) of models and their sources.

The table is `models.yaml`, part of the package. Aliases are case-insensitive. An entry's
`parameters` and `gated` are hints for tables and estimates; the checkpoint and the hub are
authoritative.
"""
