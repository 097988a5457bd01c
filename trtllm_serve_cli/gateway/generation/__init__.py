"""Generate tokens on engine workers or Triton servers and decode them to text."""
