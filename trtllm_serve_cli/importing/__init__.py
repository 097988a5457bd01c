"""Import models: create the model repository of a model from its name.

`declaration` reads and writes `tllm.yaml`, `import_plan` plans an import, and `importer` fetches
the checkpoint, builds the engine and renders the repository.
"""
