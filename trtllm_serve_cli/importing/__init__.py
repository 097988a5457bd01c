"""From a model's name to its model repository.

`declaration` is the content of a `tllm.yaml`, `import_plan` what an import would do, and `importer`
fetches, builds and renders.
"""
