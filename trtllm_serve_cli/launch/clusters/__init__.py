"""Serve models on clusters with Slurm jobs and Kubernetes manifests."""
