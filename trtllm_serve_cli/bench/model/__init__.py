"""Define the data model for benchmarks: loads, records, metrics, objectives and models."""
