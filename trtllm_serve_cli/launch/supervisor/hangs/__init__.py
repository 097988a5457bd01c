"""Detect and report unresponsive server processes."""
