"""Build TensorRT engines and serve them with Triton's C++ backend."""
