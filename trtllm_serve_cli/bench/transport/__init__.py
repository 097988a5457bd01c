"""Requests and responses as bytes, and the connections that carry them."""
