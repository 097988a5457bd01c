"""Compute statistics and confidence intervals over requests and runs."""
