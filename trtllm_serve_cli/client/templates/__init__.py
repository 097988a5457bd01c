"""Render untrusted chat templates with time and memory limits."""
