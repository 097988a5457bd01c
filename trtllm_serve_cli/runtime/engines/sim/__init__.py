"""A simulated engine: a scheduler and a timing, no model."""
