"""Find Triton, and plan its command line, environment, TLS and draining."""
