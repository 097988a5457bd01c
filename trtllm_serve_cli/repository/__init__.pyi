from .combined import (
    PlacedModel,
    plan_combination,
    prefixed,
    write_combination,
)
from .config import (
    ModelConfig,
    RepositoryPlan,
    ServingOptions,
)
from .instances import EngineInstances, read_instances
from .opened import OpenRepository, open_repository
from .plan import plan_repository
from .render import MANIFEST, render_files, write_repository
from .served import read_limits
from .settings import list_settings
from .store import (
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
