"""The engine kind `tensorrt`, which runs TensorRT engines in Triton's C++ backend."""
