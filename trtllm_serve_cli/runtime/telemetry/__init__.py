"""Publish a model's request counters, engine metrics and trace spans."""
