"""Triton's side of a model: parameters, tensors, and ways around limits of its Python stub."""
