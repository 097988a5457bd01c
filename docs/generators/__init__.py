"""Generators of pages and tables; one module per page or group of tables."""
