"""The `sim` engine kind, which simulates an engine's scheduler and step times without a model."""
