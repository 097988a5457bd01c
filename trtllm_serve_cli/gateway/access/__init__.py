"""Decide which requests may run: API keys, limits and the request queue."""
