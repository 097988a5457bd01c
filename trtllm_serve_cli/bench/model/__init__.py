"""The terms of a benchmark: records, arrivals, objectives, and the served model."""
