"""The runtime part of the engine kind `toy`."""
