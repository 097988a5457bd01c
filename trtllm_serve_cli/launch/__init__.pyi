from .container_engine import is_image_here, pull_image
from .control import find_controlled, load_models, unload_models
from .deploy import (
    find_image,
    plan_kubernetes_here,
    plan_slurm_here,
    submit_slurm,
)
from .doctor import Finding, diagnose
from .drain import show_in_flight
from .facts import MachineFacts, collect_facts
from .kubernetes import KubernetesOptions, render_manifests
from .local import launch, run_in_foreground, stop_server
from .log_lines import LogReader
from .look import look_at_gpus, look_at_models
from .machine import TritonInstallation, find_triton
from .options import LaunchOptions
from .plan import LaunchPlan, plan_launch
from .plan_here import plan_again, plan_for_this_machine
from .running import (
    RunningServer,
    find_running,
    find_servers,
    find_started,
    find_to_stop,
    list_servers,
)
from .server_processes import measure_memory
from .slurm import SlurmOptions, SlurmPlan, render_script
from .slurm_job import SlurmJob

__all__ = [
    "Finding",
    "KubernetesOptions",
    "LaunchOptions",
    "LaunchPlan",
    "LogReader",
    "MachineFacts",
    "RunningServer",
    "SlurmJob",
    "SlurmOptions",
    "SlurmPlan",
    "TritonInstallation",
    "collect_facts",
    "diagnose",
    "find_controlled",
    "find_image",
    "find_running",
    "find_servers",
    "find_started",
    "find_to_stop",
    "find_triton",
    "is_image_here",
    "launch",
    "list_servers",
    "load_models",
    "look_at_gpus",
    "look_at_models",
    "measure_memory",
    "plan_again",
    "plan_for_this_machine",
    "plan_kubernetes_here",
    "plan_launch",
    "plan_slurm_here",
    "pull_image",
    "render_manifests",
    "render_script",
    "run_in_foreground",
    "show_in_flight",
    "stop_server",
    "submit_slurm",
    "unload_models",
]
