"""Find and query running servers, load and unload their models, and deploy models."""
