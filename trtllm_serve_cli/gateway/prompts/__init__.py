"""Render conversations as prompts and parse the generated text."""
