"""From an engine to a Triton model repository, and what is known of the repositories there are.

Takes an `Engine` of the build stage and `ServingOptions`; gives a directory that Triton serves with
`--disable-auto-complete-config`, self-contained but for the engine's own files. A repository is
there whole or not at all.
"""
