"""The engine kind `sim`, which simulates an engine's scheduler and step times without a model."""
