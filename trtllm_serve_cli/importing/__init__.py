"""Import a model: create a model repository from the model's name or its `tllm.yaml`.

`declaration` reads and writes `tllm.yaml`, `import_plan` plans an import, and `importer` fetches
the checkpoint, builds the engine and renders the repository.
"""
