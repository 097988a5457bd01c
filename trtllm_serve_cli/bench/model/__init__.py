"""Define the data model of benchmarks: loads, records, metrics, objectives and served models."""
