"""Find Triton and plan its command line, environment, TLS settings and draining."""
