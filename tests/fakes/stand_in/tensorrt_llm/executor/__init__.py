"""The executor, its requests and their results."""
