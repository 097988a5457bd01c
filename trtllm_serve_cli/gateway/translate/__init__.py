"""Convert requests from other APIs to chat completions."""
