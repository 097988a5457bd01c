"""The capabilities of the engine kind `tensorrt`, which Triton's C++ backend runs."""
