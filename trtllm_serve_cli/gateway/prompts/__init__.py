"""Render conversations as prompts, and parse generated text."""
