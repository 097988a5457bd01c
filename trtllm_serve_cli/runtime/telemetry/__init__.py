"""Telemetry of a model: request counters, engine metrics and spans."""
