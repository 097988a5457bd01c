"""`tllm deploy`: deploy a model to Slurm or Kubernetes."""

from __future__ import annotations

import typer

from trtllm_serve_cli.cli.command_groups import FullSummaryGroup
from trtllm_serve_cli.cli.server.deploy_k8s import k8s
from trtllm_serve_cli.cli.server.deploy_slurm import slurm

deploy_app = typer.Typer(
    cls=FullSummaryGroup,
    help="Deploy a model to Slurm or Kubernetes.",
    no_args_is_help=True,
)
deploy_app.command()(slurm)
deploy_app.command()(k8s)
