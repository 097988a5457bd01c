"""The data model for benchmarks: records, arrivals, objectives, and the served model."""
