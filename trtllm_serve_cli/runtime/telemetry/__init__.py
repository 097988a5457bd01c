"""What a model reports: counters, engine metrics and spans."""
