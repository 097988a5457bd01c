"""Publish request counters, engine metrics, the server state and trace spans."""
