"""From a model repository to a server that is ready, and what becomes of it.

`plan_launch` decides as data which Triton runs how; `launch` starts a supervisor, which starts it,
waits until a token was generated through the repository, keeps it running and writes down in the
server's folder what it knows. A server that does not become ready leaves nothing running.
"""

from trtllm_serve_cli.launch.deploy import (
    find_image,
    plan_kubernetes_here,
    plan_slurm_here,
    submit_slurm,
)
from trtllm_serve_cli.launch.doctor import Finding, diagnose
from trtllm_serve_cli.launch.facts import MachineFacts, collect_facts
from trtllm_serve_cli.launch.kubernetes import KubernetesOptions, render_manifests
from trtllm_serve_cli.launch.local import (
    launch,
    plan_for_this_machine,
    run_in_foreground,
    stop_server,
)
from trtllm_serve_cli.launch.machine import TritonInstallation, find_triton
from trtllm_serve_cli.launch.options import LaunchOptions
from trtllm_serve_cli.launch.plan import LaunchPlan, plan_launch
from trtllm_serve_cli.launch.running import (
    RunningServer,
    find_running,
    find_servers,
    list_servers,
    measure_memory,
    name_servers,
)
from trtllm_serve_cli.launch.slurm import SlurmOptions, SlurmPlan, render_script
from trtllm_serve_cli.launch.slurm_job import SlurmJob

__all__ = [
    "Finding",
    "KubernetesOptions",
    "LaunchOptions",
    "LaunchPlan",
    "MachineFacts",
    "RunningServer",
    "SlurmJob",
    "SlurmOptions",
    "SlurmPlan",
    "TritonInstallation",
    "collect_facts",
    "diagnose",
    "find_image",
    "find_running",
    "find_servers",
    "find_triton",
    "launch",
    "list_servers",
    "measure_memory",
    "name_servers",
    "plan_for_this_machine",
    "plan_kubernetes_here",
    "plan_launch",
    "plan_slurm_here",
    "render_manifests",
    "render_script",
    "run_in_foreground",
    "stop_server",
    "submit_slurm",
]
