"""Detect and report processes of a server that do not respond."""
