"""Run benchmarks, sample servers, sweep loads, and search for the highest request rate."""
