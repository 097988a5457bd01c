"""What a model repository consists of: its tensors, parameters, files and manifest."""
