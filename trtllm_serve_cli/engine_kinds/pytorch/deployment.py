"""Find the number of GPUs and the container for models that TensorRT-LLM's LLM API serves."""

from __future__ import annotations

from trtllm_serve_cli.build.tensorrt.versions import find_containers, load_containers
from trtllm_serve_cli.engine_kinds.checkpoint_serving import count_gpus
from trtllm_serve_cli.engine_kinds.kind import ContainerFit, Deployment, ModelView, RepositoryView
from trtllm_serve_cli.engine_kinds.tensorrt_llm import find_version
from trtllm_serve_cli.errors import RepositoryError
from trtllm_serve_cli.runtime.engines.pytorch.arguments import LLM_ARGUMENTS, arguments_of
from trtllm_serve_cli.runtime.triton.model_yaml import parse_model_yaml


def _count_gpus(model: ModelView, repository: RepositoryView) -> int:
    """Return the number of GPUs that the arguments in the repository's files require.

    Raise `RepositoryError` if the arguments cannot be read.
    """
    is_llmapi = repository.layout == "llmapi"
    path = repository.path / "tensorrt_llm" / ("1/model.yaml" if is_llmapi else "config.pbtxt")
    try:
        if is_llmapi:
            return count_gpus(parse_model_yaml(path.read_text(encoding="utf-8")))
        rest = repository.value("tensorrt_llm", f"parameters.{LLM_ARGUMENTS.rest}")
        return count_gpus(arguments_of({LLM_ARGUMENTS.rest: rest}))
    except (OSError, ValueError, TypeError) as error:
        raise RepositoryError(
            f"The number of GPUs cannot be read from {path}.",
            why=str(error),
            next_step=f"run `tllm validate {repository.target}` to find the error",
        ) from error


def _fit_container(model: ModelView) -> ContainerFit:
    """Return the newest container with the requested TensorRT-LLM version.

    If no version is requested, return the newest container. If no container has the requested
    version, the `image` and `container` of the result are None.
    """
    requested: str | None = model.declaration.get("engine", {}).get("trtllm_version")
    needs = f"Triton and TensorRT-LLM {requested or '1.0 or later'}"
    if requested is None:
        container = load_containers()[-1]
        return ContainerFit(needs, container.image, container)
    version = find_version(requested)
    containers = find_containers(version) if version is not None else ()
    if not containers:
        return ContainerFit(needs)
    return ContainerFit(needs, containers[-1].image, containers[-1])


DEPLOYMENT = Deployment(
    fit_container=_fit_container,
    count_gpus=_count_gpus,
    ranks="llm_api",
    refuses_mpirun="TensorRT-LLM's LLM API starts one process per GPU and cannot use the "
    "processes that mpirun starts",
)
