"""The formulas: times of a request, statistics over requests, and confidence intervals."""
