"""The `tensorrt` engine kind, which runs TensorRT engines in Triton's C++ backend."""
