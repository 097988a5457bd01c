"""Benchmarks without a server: simulated engines on a virtual clock, and their calibration."""
