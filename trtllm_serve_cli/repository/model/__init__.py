"""Define the parts of a model repository: tensors, parameters, files and manifest."""
