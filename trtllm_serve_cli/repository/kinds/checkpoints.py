"""What is the same in repositories whose engine is a checkpoint, served as it is.

The arguments of the engine's package are the entries of `config.pbtxt` that upstream has a
parameter for, and for the rest one entry with a JSON object.
"""

from __future__ import annotations

from trtllm_serve_cli.runtime.engines.engine_arguments import Arguments, ArgumentTable

# What is served when nothing was asked for; the others are the package's own defaults.
MAX_BATCH_SIZE = 256
MAX_NUM_TOKENS = 8192
# Entries whose parameters have other names.
_RENAMED = {"gpt_model_path": "engine_dir"}


def values_of(table: ArgumentTable, arguments: Arguments) -> dict[str, str]:
    """Parameter -> value, as the arguments ask."""
    values = {_RENAMED.get(entry, entry): value for entry, value in table.write(arguments).items()}
    return values | {"triton_max_batch_size": values["max_num_seqs"]}
