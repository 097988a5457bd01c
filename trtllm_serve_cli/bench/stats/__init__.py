"""Compute statistics over requests and runs, and their confidence intervals."""
