"""What `tllm doctor` collects about this machine, and what it concludes."""
