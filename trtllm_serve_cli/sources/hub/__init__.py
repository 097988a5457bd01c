"""Query the Hugging Face Hub and download files with resumable transfers."""
