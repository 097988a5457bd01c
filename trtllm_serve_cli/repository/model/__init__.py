"""Define the tensors, parameters, files and manifest of a model repository."""
