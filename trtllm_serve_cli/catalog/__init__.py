"""The models `tllm` knows by a short name: from an alias to where the model comes from.

The table is `models.yaml`, shipped with the package. Aliases are looked up without regard to case.
What an entry says of a model (parameters, gated) is a hint for tables and estimates; the checkpoint
and the hub have the last word.
"""
