"""Run chat templates, which are untrusted code, with limits."""
