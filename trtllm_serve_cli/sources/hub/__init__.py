"""Query the Hugging Face hub and download its files; large downloads can be resumed."""
