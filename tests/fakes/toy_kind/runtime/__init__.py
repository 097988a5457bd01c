"""The runtime half of the engine kind `toy`."""
