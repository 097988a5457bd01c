"""The engine kind `tensorrt`, which Triton's C++ backend runs: only its capabilities."""
