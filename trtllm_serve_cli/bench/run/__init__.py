"""Run a benchmark, sample the server, sweep loads, and search for the highest rate."""
