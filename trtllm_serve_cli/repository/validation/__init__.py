"""Check a model repository for errors without starting a server."""
