"""Define request bodies and response chunks."""
