"""Watch the processes of a server: detect hangs, and hide secrets from other users.

The supervisor of `tllm start` imports these modules. Kubernetes pods and Slurm jobs have no
supervisor. Pods run the program `pod_probe` and Slurm jobs run `job_server`, both from the model
repository, because Triton's images do not contain `tllm`. The programs require only the standard
library.
"""
