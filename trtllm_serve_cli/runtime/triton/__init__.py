"""The interface to Triton: parameters, tensors, and workarounds for bugs in its Python stub."""
