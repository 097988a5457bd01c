"""Reject engine arguments that a TensorRT-LLM version does not support.

Source: tensorrt_llm/llmapi/llm_args.py in NVIDIA/TensorRT-LLM (1.0 to 1.3). The table contains only
arguments that some of these versions do not support. When a model is loaded,
`runtime/engines/pytorch/installed.py` checks all arguments against the installed classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from trtllm_serve_cli.engine_kinds.tensorrt_llm import find_version
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.pytorch.arguments import LLM_ARGUMENTS


@dataclass(frozen=True, slots=True)
class _Versions:
    """The TensorRT-LLM versions that support an argument.

    - `since`: the first version with the argument.
    - `removed`: the first version without the argument, or None.
    - `always`: the value that versions without the argument always use, or None. This value is
      accepted for every version.
    """

    since: str = "1.0.dev0"
    removed: str | None = None
    always: Any = None


_VERSIONS: Mapping[str, _Versions] = {
    "kv_cache_config.onboard_blocks": _Versions(removed="1.3.0rc25", always=True),
    "kv_cache_config.tokens_per_block": _Versions(since="1.1.dev0"),
    "speculative_config.allow_advanced_sampling": _Versions(since="1.3.dev0"),
    "speculative_config.enable_penalty": _Versions(since="1.3.0rc26"),
}
_PARAMETERS = {argument: parameter for parameter, (argument, _) in LLM_ARGUMENTS.rows.items()}


def check_arguments(arguments: Mapping[str, Any], version: str) -> None:
    """Raise `BadInput` if TensorRT-LLM `version` does not support one of the arguments.

    If `version` is empty or not a valid version, skip the check.
    """
    parsed = find_version(version) if version else None
    if parsed is None:
        return
    for path, versions in _VERSIONS.items():
        group, _, name = path.partition(".")
        values = arguments.get(group)
        if isinstance(values, Mapping) and name in values and values[name] != versions.always:
            _check(path, parsed, versions)


def _check(path: str, version: Version, versions: _Versions) -> None:
    name = _PARAMETERS.get(path, path)
    is_removed = versions.removed is not None and version >= Version(versions.removed)
    if is_removed:
        why = f"the argument {path} was removed in {versions.removed}"
        next_step = f"omit {name}, or use an earlier TensorRT-LLM version"
    elif version < Version(versions.since):
        since = versions.since.removesuffix(".dev0")
        why = f"the argument {path} was added in {since}"
        next_step = f"omit {name}, or use TensorRT-LLM {since} or later"
    else:
        return
    raise BadInput(
        f"TensorRT-LLM {version} does not support the requested value of {name}.",
        why=why,
        next_step=next_step,
    )
