"""The parts of a model repository: tensors, parameters, files and manifest."""
