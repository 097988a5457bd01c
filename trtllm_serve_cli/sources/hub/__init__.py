"""Access the Hugging Face hub: its API, and downloads of large files that can be resumed."""
