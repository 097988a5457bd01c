"""Map model aliases (short names) to model sources.

The catalog is the file `models.yaml` in this package. Aliases are case-insensitive. The
`parameters` and `gated` fields are used only by `tllm list --catalog`. Elsewhere, tllm reads these
facts from the checkpoint and the hub.
"""
