"""The interface to Triton: parameters, tensors, and workarounds for limits of its Python stub."""
