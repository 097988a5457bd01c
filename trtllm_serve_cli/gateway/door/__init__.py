"""Forward requests to Triton's own HTTP API, with limits that protect Triton."""
