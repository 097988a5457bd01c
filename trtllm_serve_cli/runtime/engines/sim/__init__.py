"""The engine kind `sim`: a simulated engine with a scheduler and a timing, but no model."""
