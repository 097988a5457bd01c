"""Triton itself: its installation, its command line, its TLS, and how it drains."""
