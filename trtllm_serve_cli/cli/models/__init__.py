"""Commands that import, list, show, change, validate, update, export and remove models."""
