"""TensorRT engines, which Triton's C++ backend runs: only their capabilities are declared here."""
