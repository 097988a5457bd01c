"""Convert text to token ids and back, and stream text without loss."""
