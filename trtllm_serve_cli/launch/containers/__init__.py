"""Servers in containers, and what a model needs of a machine elsewhere."""
