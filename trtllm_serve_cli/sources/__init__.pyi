from .checkpoint import (
    Checkpoint,
    FetchOptions,
    inspect_gguf,
    inspect_hf_directory,
)
from .fetch import (
    FetchPlan,
    fetch_checkpoint,
    fetch_config,
    fetch_index,
    inspect_source,
    plan_fetch,
)
from .gguf import GgufFacts, read_gguf
from .hub import find_hub
from .progress import FileProgress, Progress, Watch, show_duration, show_progress
from .source import (
    CheckpointSource,
    EngineSource,
    GgufSource,
    HubSource,
    LocalSource,
    PypiSource,
    Source,
    parse_source,
)
from .space import check_space, find_free_bytes, show_size

__all__ = [
    "Checkpoint",
    "CheckpointSource",
    "EngineSource",
    "FetchOptions",
    "FetchPlan",
    "FileProgress",
    "GgufFacts",
    "GgufSource",
    "HubSource",
    "LocalSource",
    "Progress",
    "PypiSource",
    "Source",
    "Watch",
    "check_space",
    "fetch_checkpoint",
    "fetch_config",
    "fetch_index",
    "find_free_bytes",
    "find_hub",
    "inspect_gguf",
    "inspect_hf_directory",
    "inspect_source",
    "parse_source",
    "plan_fetch",
    "read_gguf",
    "show_duration",
    "show_progress",
    "show_size",
]
