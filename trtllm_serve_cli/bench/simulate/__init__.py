"""Run benchmarks on simulated engines without a server and calibrate the simulation."""
