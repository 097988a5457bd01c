"""From an engine to a Triton model repository, and what is known of the repositories there are.

Takes an `Engine` of the build stage and `ServingOptions`; gives a directory that Triton serves with
`--disable-auto-complete-config`, self-contained but for the engine's own files. A repository is
there whole or not at all.
"""

from trtllm_serve_cli.repository.combined import (
    PlacedModel,
    plan_combination,
    prefixed,
    write_combination,
)
from trtllm_serve_cli.repository.config import (
    ModelConfig,
    RepositoryPlan,
    ServingOptions,
)
from trtllm_serve_cli.repository.instances import EngineInstances, read_instances
from trtllm_serve_cli.repository.opened import OpenRepository, open_repository
from trtllm_serve_cli.repository.plan import plan_repository
from trtllm_serve_cli.repository.render import MANIFEST, render_files, write_repository
from trtllm_serve_cli.repository.served import read_limits
from trtllm_serve_cli.repository.settings import list_settings
from trtllm_serve_cli.repository.store import (
    ImportedModel,
    find_model,
    list_models,
    load_model,
    read_manifest,
)

__all__ = [
    "MANIFEST",
    "EngineInstances",
    "ImportedModel",
    "ModelConfig",
    "OpenRepository",
    "PlacedModel",
    "RepositoryPlan",
    "ServingOptions",
    "find_model",
    "list_models",
    "list_settings",
    "load_model",
    "open_repository",
    "plan_combination",
    "plan_repository",
    "prefixed",
    "read_instances",
    "read_limits",
    "read_manifest",
    "render_files",
    "write_combination",
    "write_repository",
]
