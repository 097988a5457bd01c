"""The commands of `tllm` by group: what `tllm --help` lists, and where each one is defined."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """One command: the function or the Typer application that `target` names, and its summary.

    A target is "module:attribute", with the module's name below `trtllm_serve_cli.cli`.
    """

    name: str
    target: str
    summary: str


COMMAND_GROUPS = {
    "Models": (
        Command(
            "import",
            "models.import_command:import_model",
            "Fetch a model, build its engine, render its repository.",
        ),
        Command(
            "build",
            "models.import_command:build_model",
            "Fetch a model and build its engine; render nothing.",
        ),
        Command(
            "plan",
            "models.plan_command:plan",
            "Say whether a model fits on a GPU, and what it could do there.",
        ),
        Command("list", "models.imported_models:list_models", "List the imported models."),
        Command("show", "models.parameters:show", "Show a model's parameters, explained."),
        Command("set", "models.parameters:set_", "Change a model's parameters."),
        Command(
            "validate",
            "models.parameters:validate",
            "Look for what is wrong in a model repository.",
        ),
        Command("export", "models.export:export", "Print the tllm.yaml that makes a model again."),
        Command(
            "remove",
            "models.imported_models:remove",
            "Delete a model's repository, and its engine if unused.",
        ),
        Command("lora", "models.lora:lora_app", "Convert LoRA adapters."),
    ),
    "Serving": (
        Command("start", "server.start:start", "Serve imported models; return when they answer."),
        Command("stop", "server.stop:stop", "Stop a server, after the requests in flight."),
        Command("restart", "server.restart:restart", "Stop a server, and start it as it was."),
        Command(
            "status",
            "server.status:status",
            "Show the servers: state, ports, models, memory and GPUs.",
        ),
        Command("logs", "server.logs:logs", "Print the end of a server's log."),
        Command("load", "server.load:load", "Load a model into a running server."),
        Command("unload", "server.load:unload", "Unload a model; its server goes on."),
    ),
    "Asking and measuring": (
        Command("infer", "infer.infer_command:infer", "Send a prompt and print the response."),
        Command(
            "bench",
            "bench.workload_commands:bench_app",
            "Load running servers and measure them.",
        ),
        Command(
            "metrics",
            "metrics.metrics_command:metrics_app",
            "Show requests, engine and host of the running server.",
        ),
    ),
    "Clusters": (
        Command(
            "deploy",
            "server.deploy:deploy_app",
            "Serve a model on a cluster: Slurm or Kubernetes.",
        ),
    ),
    "This machine": (
        Command(
            "doctor", "server.doctor:doctor", "Check this machine; say how to fix what is missing."
        ),
    ),
}
