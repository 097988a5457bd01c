"""Import a model: create its model repository from its name or its `tllm.yaml`.

`declaration` reads and writes `tllm.yaml`, `import_plan` plans an import, and `importer` fetches
the checkpoint, builds the engine and renders the repository.
"""
