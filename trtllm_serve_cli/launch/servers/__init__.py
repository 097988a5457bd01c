"""The servers that run: find them, query them, load and unload models, deploy."""
