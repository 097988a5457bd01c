"""Decide which requests may run, based on API keys, limits and the request queue."""
