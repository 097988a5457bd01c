"""From an engine to a Triton model repository, and what is known of the repositories there are.

Takes an `Engine` of the build stage and `ServingOptions` (`import_model` goes the whole way, from
an alias or a source); gives a directory that Triton serves with `--disable-auto-complete-config`,
self-contained but for the engine's own files. A repository is
there whole or not at all.
"""

from trtllm_serve_cli.repository.importing import (
    ImportPlan,
    ImportRequest,
    build_model,
    import_model,
    plan_import,
)
from trtllm_serve_cli.repository.plan import (
    ModelConfig,
    RepositoryPlan,
    ServingOptions,
    plan_repository,
)
from trtllm_serve_cli.repository.render import render_files, write_repository
from trtllm_serve_cli.repository.store import (
    ImportedModel,
    find_model,
    list_models,
    load_model,
    remove_model,
)

__all__ = [
    "ImportPlan",
    "ImportRequest",
    "ImportedModel",
    "ModelConfig",
    "RepositoryPlan",
    "ServingOptions",
    "build_model",
    "find_model",
    "import_model",
    "list_models",
    "load_model",
    "plan_import",
    "plan_repository",
    "remove_model",
    "render_files",
    "write_repository",
]
