"""The data model of a benchmark: records, arrivals, objectives, and the served model."""
