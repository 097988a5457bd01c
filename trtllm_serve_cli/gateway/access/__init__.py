"""Decide which requests may run, by their API keys, the limits and the request queue."""
