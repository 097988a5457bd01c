"""The engine kind `sim`: a simulated engine with a scheduler and step times, but no model."""
