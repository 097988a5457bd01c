"""TensorRT engines, which Triton's C++ backend serves."""
