"""Servers that a scheduler starts: Slurm jobs and Kubernetes manifests."""
