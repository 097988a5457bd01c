"""Triton's installation, command line, TLS and draining."""
