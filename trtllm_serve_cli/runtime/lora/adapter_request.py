"""Read a request's adapter from the `lora_*` tensors or the `lora_name` request parameter.

The engine worker receives adapter weights in a private file, because they are too large for a
worker protocol message.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import GenerationRequest, InvalidRequest
from .adapter import Adapter, Array, BadAdapter, Sites, check_shapes, decode_adapter
from .peft import read_adapter

LORA_TENSORS = ("lora_task_id", "lora_weights", "lora_config")
# The request parameter that contains the adapter name, as in Triton's vLLM backend.
NAME_PARAMETER = "lora_name"


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """The LoRA adapter options, named after their `config.pbtxt` parameters."""

    lora_prefetch_dir: str = ""
    max_loras: int = 4
    lora_cache_max_adapter_size: int = 64
    lora_cache_host_memory_bytes: int = 1 << 30

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LoraOptions:
        """Return the options in an engine worker's configuration."""
        return cls(**{name: config[name] for name in cls.__slots__ if name in config})


def key_of(request: GenerationRequest) -> str | None:
    """Return the key of the adapter that `request` uses, or None if it uses no adapter."""
    return request.lora_name if request.lora_task_id is None else str(request.lora_task_id)


def check_no_adapter(request: GenerationRequest, needed: str) -> None:
    """Raise `InvalidRequest` if the request uses an adapter.

    `needed` is the import option that the error message recommends.
    """
    if key_of(request) is not None:
        raise InvalidRequest(
            "the request selects an adapter (lora_task_id or lora_name), but this model was "
            f"imported without adapter support; import the model again with {needed}"
        )


def prefetched_key(name: str) -> str:
    """Return the adapter key for a folder name.

    A numeric name is a task id; its key is the number without leading zeros.
    """
    return str(int(name)) if name.isascii() and name.isdecimal() else name


def read_prefetched(
    folder: Path, read: Callable[[Path], Adapter]
) -> Iterator[tuple[str, Path, Adapter]]:
    """Yield the key, the folder and the result of `read` for each adapter in `folder`.

    Skip files and hidden folders. If `folder` is not a folder, raise a `BadAdapter` that names the
    path. If `read` rejects an adapter, raise a `BadAdapter` that names the adapter's folder.
    """
    if not folder.is_dir():
        raise BadAdapter(
            f"lora_prefetch_dir is {folder}, which is not a folder; set lora_prefetch_dir to "
            "the folder that contains the adapters"
        )
    for each in sorted(folder.iterdir()):
        if not each.is_dir() or each.name.startswith("."):
            continue
        try:
            adapter = read(each)
        except BadAdapter as error:
            raise BadAdapter(f"the adapter in {each} cannot be served: {error}") from error
        yield prefetched_key(each.name), each, adapter


def explain_unknown(request: GenerationRequest, prefetched: Iterable[str]) -> str:
    """Return the error message for a request whose adapter is not available."""
    if request.lora_task_id is not None:
        return explain_not_found(str(request.lora_task_id))
    names = ", ".join(prefetched)
    fix = f"send one of these names: {names}" if names else "set lora_prefetch_dir to add adapters"
    return f"no adapter with the lora_name {request.lora_name!r} is available; {fix}"


def explain_not_found(task_id: str) -> str:
    """Return the error message for a request whose task id has no adapter.

    The message starts with the exact message of NVIDIA's backend, because clients match on that
    message. It ends with the names of the tensors to send.
    """
    return (
        f"LoRA task {task_id} not found in cache. Please send LoRA weights with request "
        "(lora_weights and lora_config with lora_task_id)"
    )


def explain_missing_file(request: GenerationRequest) -> str:
    """Return the error message for a request whose adapter files do not exist.

    The weights for a task id are missing if the client has cancelled the request that contained the
    weights. The folder of a named adapter is missing if it was deleted on the server.
    """
    if request.lora_task_id is not None:
        return explain_not_found(str(request.lora_task_id))
    return (
        f"a file of the adapter {request.lora_name!r} is missing; restore the adapter folder on "
        "the server, or load the adapter again"
    )


def read_lora_name(parameters: str) -> str | None:
    """Return the adapter name in a request's parameters, or None if the request has no name.

    `parameters` is the JSON text that Triton passes. Raise `InvalidRequest` if the name is invalid.
    """
    if NAME_PARAMETER not in parameters:
        return None
    name = json.loads(parameters).get(NAME_PARAMETER)
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequest(
            f"the {NAME_PARAMETER} request parameter is {name!r}; send an adapter name"
        )
    return name


def parse_lora(
    get: Callable[[str], Array | None], name: str | None, num_rows: int, folder: Path
) -> list[dict[str, Any]]:
    """Return the adapter fields of each row's `GenerationRequest`, as one dictionary per row.

    The dictionaries are empty if the request uses no adapter. Adapter weights are written to new
    files in `folder`. `read_sent` or `discard` deletes these files. Raise `InvalidRequest` if a
    tensor is missing or invalid, if the request contains both tensors and a `name`, or if a file
    cannot be written. If an error is raised, no files are kept.
    """
    task_ids, weights, config = (get(each) for each in LORA_TENSORS)
    if task_ids is None and weights is None and config is None:
        return [{} if name is None else {"lora_name": name}] * num_rows
    if name is not None:
        raise InvalidRequest(
            f"the request has both the {NAME_PARAMETER} parameter and a tensor (lora_task_id, "
            "lora_weights or lora_config); send either the parameter or the tensors"
        )
    if task_ids is None:
        raise InvalidRequest(
            "lora_weights and lora_config require lora_task_id; send one id per row"
        )
    if task_ids.size != num_rows:
        raise InvalidRequest(
            f"lora_task_id has shape {list(task_ids.shape)}, but the request has {num_rows} "
            "rows; send one id per row"
        )
    if (weights is None) != (config is None):
        missing = "lora_weights" if weights is None else "lora_config"
        raise InvalidRequest(f"{missing} is missing; send both lora_weights and lora_config")
    rows: list[dict[str, Any]] = [{"lora_task_id": int(each)} for each in task_ids.reshape(-1)]
    if weights is not None and config is not None:
        for row, file in zip(rows, _write_rows(weights, config, num_rows, folder), strict=True):
            row["lora_file"] = file
    return rows


def read_sent(file: Path) -> tuple[Array, Array]:
    """Return the `lora_weights` and `lora_config` that `parse_lora` wrote to `file`.

    Delete the file. Raise `BadAdapter` if the file is incomplete, or `OSError` if it cannot be read
    or deleted.
    """
    with file.open("rb") as opened:
        file.unlink()
        try:
            return np.load(opened, allow_pickle=False), np.load(opened, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise BadAdapter(
                f"the server's copy of lora_weights and lora_config is incomplete ({error}); send "
                "the request again"
            ) from error


def read_received(path: Path, sites: Sites) -> Adapter:
    """Return the adapter in `path`: a weights file from the client or a folder on the server.

    Delete `path` if it is a file, but never delete a folder. Raise `BadAdapter` if the adapter is
    invalid, or `OSError` if a file cannot be read.
    """
    if path.is_dir():
        return read_adapter(path, sites)
    return decode_adapter(*read_sent(path), sites)


def discard(rows: Iterable[Mapping[str, Any]]) -> None:
    """Delete the files that `parse_lora` wrote for `rows`, if they still exist."""
    for row in rows:
        if file := row.get("lora_file"):
            Path(file).unlink(missing_ok=True)


def _write_rows(weights: Array, config: Array, num_rows: int, folder: Path) -> list[str]:
    for tensor, each in (("lora_weights", weights), ("lora_config", config)):
        if each.ndim != 3 or len(each) != num_rows:
            raise InvalidRequest(
                f"{tensor} has shape {list(each.shape)}; send a tensor of shape "
                f"[{num_rows}, modules, values]"
            )
    files: list[str] = []
    try:
        for each_weights, each_config in zip(weights, config, strict=True):
            check_shapes(each_weights, each_config)
            files.append(_write(each_weights, each_config, folder))
    except (BadAdapter, OSError) as error:
        discard([{"lora_file": file} for file in files])
        raise InvalidRequest(str(error)) from error
    return files


def _write(weights: Array, config: Array, folder: Path) -> str:
    number, file = tempfile.mkstemp(prefix="lora-", dir=folder)
    try:
        with os.fdopen(number, "wb") as opened:
            np.save(opened, weights)
            np.save(opened, config)
    except OSError:
        with contextlib.suppress(OSError):
            Path(file).unlink()
        raise
    return file
