"""Query the Hugging Face hub, and download files with resumable transfers."""
