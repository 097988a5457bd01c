"""Declare the groups of `tllm` commands in `tllm --help`, and synonyms for the commands."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A `tllm` command.

    `target` is the function or Typer application that implements the command, in the form
    "module:attribute". The module is relative to `trtllm_serve_cli.cli`. `summary` is the
    description in `tllm --help`.
    """

    name: str
    target: str
    summary: str


COMMAND_GROUPS = {
    "Models": (
        Command(
            "import",
            "models.import_command:import_model",
            "Fetch a model, build its engine and render its repository.",
        ),
        Command(
            "build",
            "models.import_command:build_model",
            "Fetch a model and build its engine without rendering a repository.",
        ),
        Command(
            "plan",
            "models.plan_command:plan",
            "Estimate whether a model fits on GPUs and how fast it runs.",
        ),
        Command("list", "models.imported_models:list_models", "List the imported models."),
        Command("show", "models.parameters:show", "Show and explain a model's parameters."),
        Command("set", "models.parameters:set_", "Change a model's parameters."),
        Command(
            "validate",
            "models.parameters:validate",
            "Check a model repository for errors.",
        ),
        Command(
            "update",
            "models.update:update",
            "Update the runtime in a model repository to this version.",
        ),
        Command("export", "models.export:export", "Export a model as tllm.yaml."),
        Command(
            "remove",
            "models.imported_models:remove",
            "Delete a model's repository and, if unused, its engine.",
        ),
        Command("lora", "models.lora:lora_app", "Convert LoRA adapters."),
    ),
    "Serving": (
        Command("start", "server.start:start", "Start a server for imported models."),
        Command(
            "stop", "server.stop:stop", "Stop a server after its requests in flight have finished."
        ),
        Command("restart", "server.restart:restart", "Restart a server with the same options."),
        Command(
            "status",
            "server.status:status",
            "Show the state, ports, models, memory and GPUs of servers.",
        ),
        Command("logs", "server.logs:logs", "Print a server's log."),
        Command(
            "gateway",
            "server.gateway:gateway",
            "Serve an OpenAI-compatible API for existing Triton servers.",
        ),
        Command("keys", "server.keys:keys_app", "Manage API keys for the OpenAI-compatible API."),
        Command("load", "server.load:load", "Load a model into a running server."),
        Command("unload", "server.load:unload", "Unload a model from a running server."),
    ),
    "Requests and measurements": (
        Command(
            "run",
            "infer.run_command:run",
            "Send a prompt, importing and starting the model if necessary.",
        ),
        Command("infer", "infer.infer_command:infer", "Send a prompt and print the response."),
        Command(
            "bench",
            "bench.workload_commands:bench_app",
            "Benchmark running servers.",
        ),
        Command(
            "metrics",
            "metrics.metrics_command:metrics_app",
            "Show the metrics of running servers.",
        ),
    ),
    "Clusters": (
        Command(
            "deploy",
            "server.deploy:deploy_app",
            "Deploy a model to Slurm or Kubernetes.",
        ),
    ),
    "Diagnostics": (
        Command(
            "doctor", "server.doctor:doctor", "Check this machine and print a fix for each problem."
        ),
    ),
}

# Maps commands of similar tools to the equivalent `tllm` commands.
SYNONYMS = {
    "chat": "infer",
    "convert": "import",
    "delete": "remove",
    "download": "import",
    "generate": "infer",
    "kill": "stop",
    "ls": "list",
    "ps": "status",
    "pull": "import",
    "rm": "remove",
    "serve": "start",
    "up": "start",
    "upgrade": "update",
}
