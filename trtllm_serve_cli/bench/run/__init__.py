"""Run a benchmark, sample the server meanwhile, sweep loads, and search the highest rate."""
