from .combined import (
    PlacedModel,
    plan_combination,
    prefixed,
    write_combination,
)
from .config import ModelConfig, RepositoryPlan, ServingOptions
from .copies import read_repository
from .instances import EngineInstances, read_gpu_groups, read_instances
from .opened import OpenRepository, open_repository
from .plan import plan_repository
from .pytorch import count_gpus, read_llm_gpus
from .render import MANIFEST, render_files, write_repository
from .served import read_limits
from .settings import list_settings
from .store import ImportedModel, find_model, list_models, load_model, read_manifest

__all__ = [
    "MANIFEST",
    "EngineInstances",
    "ImportedModel",
    "ModelConfig",
    "OpenRepository",
    "PlacedModel",
    "RepositoryPlan",
    "ServingOptions",
    "count_gpus",
    "find_model",
    "list_models",
    "list_settings",
    "load_model",
    "open_repository",
    "plan_combination",
    "plan_repository",
    "prefixed",
    "read_gpu_groups",
    "read_instances",
    "read_limits",
    "read_llm_gpus",
    "read_manifest",
    "read_repository",
    "render_files",
    "write_combination",
    "write_repository",
]
