"""The Hugging Face hub: its API, and large files fetched so that a killed download resumes."""
