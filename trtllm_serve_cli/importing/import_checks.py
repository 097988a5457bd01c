"""Check an import's name, folders and build options before downloading files."""

from __future__ import annotations

import re
import shlex

from trtllm_serve_cli.engine_kinds.registry import UPSTREAM
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.sections import ModelSection
from trtllm_serve_cli.launch.triton.stub_paths import check_paths
from trtllm_serve_cli.paths import Home, check_model_name
from trtllm_serve_cli.sources.registry import guess_source


def check_name(model: ModelSection) -> None:
    """Raise `BadInput` if the name is not valid.

    If the source is set, or if the name looks like a source, the error suggests a valid name.
    """
    try:
        check_model_name(model.name)
    except BadInput as error:
        source = model.source or guess_source(model.name)
        if source is None:
            raise
        raise BadInput(
            error.what,
            why=error.why,
            next_step="pass a name and the model's source, for example "
            f"`-m {_name_after(source)} -s {shlex.quote(source)}`",
        ) from error


def _name_after(source: str) -> str:
    """Return a valid model name based on the last part of the source.

    Return "NAME" if this part contains no letters or digits.
    """
    last = re.split("[:/#]", source.rstrip("/").removesuffix(".gguf"))[-1].partition("@")[0]
    return re.sub("[^a-z0-9._-]+", "-", last.lower()).strip("-._") or "NAME"


def check_mode(declaration: Declaration, kind: str) -> None:
    """Raise `BadInput` if an option for builds in a container does not apply to the import.

    `--mode container` applies only to TensorRT engines. `--image`, `--container-engine`, `--gpus`
    and `--examples` require `--mode container`.
    """
    engine = declaration.engine
    if engine.mode == "container":
        if kind != UPSTREAM:
            raise BadInput(
                f"tllm does not build {kind} engines in a container.",
                why=f"--mode container applies only to {UPSTREAM} engines",
                next_step=f"omit --mode container, or pass --engine {UPSTREAM}",
            )
        return
    for name in ("image", "container_engine", "gpus", "examples"):
        if getattr(engine, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{option} applies only to builds in a container.",
                next_step=f"omit {option}, or add --mode container",
            )


def find_path_problem(declaration: Declaration, home: Home) -> BadInput | None:
    """Return the error that `tllm start` would raise for the import's folders, or `None`.

    Servers in a container and `tllm infer --no-server` may still be able to use the model.
    """
    repository = declaration.repository.dir or home.models
    try:
        check_paths(home.servers, [repository], [declaration.engine.dir or home.engines])
    except BadInput as error:
        return error
    return None


def describe_path_problem(problem: BadInput) -> str:
    """Return a one-line warning about a folder that Triton cannot use outside a container."""
    return (
        f"Warning: `tllm start` can serve the model only in a container. {problem.what} "
        f"{problem.why}. To serve the model without a container, {problem.next_step}."
    )
