"""Watch the processes of a server: detect hangs, and hide secrets from other users.

The supervisor of `tllm start` uses these modules. In Kubernetes pods and Slurm jobs, which have no
supervisor, Triton's container runs `pod_probe` or `job_server`, respectively, from the model
repository. Both programs require only the standard library.
"""
