"""Prepare LoRA adapters for engines that load each adapter from a folder in PEFT format.

Adapters sent by clients and folders with TensorRT-LLM's two `.npy` files are converted to folders
in PEFT format. The engine decides which adapters are in GPU memory.
"""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import GenerationRequest, InvalidRequest
from ..scratch import make_temporary_folder
from .adapter import (
    Adapter,
    BadAdapter,
    LowRank,
    Sites,
    check_adapter,
    check_not_empty,
)
from .adapter_request import (
    LoraOptions,
    explain_missing_file,
    explain_unknown,
    key_of,
    read_prefetched,
    read_received,
)
from .file_names import PEFT_CONFIG, PEFT_WEIGHTS
from .peft import read_adapter
from .safetensors import read_shapes, write_safetensors

_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """The arguments for an engine's `LoRARequest`. `number` is unique among all adapters."""

    name: str
    number: int
    folder: Path


class AdapterFolders:
    """The adapters in `lora_prefetch_dir` and the adapters that clients have sent.

    Converted adapters are stored in `work_dir`. If the total size of the adapters from clients
    exceeds `lora_cache_host_memory_bytes`, unused adapters are evicted, least recently used first.
    `find_sites` returns the modules that an adapter can change. The constructor raises `BadAdapter`
    if `lora_prefetch_dir` is not a folder, or if an adapter in it cannot be served. It raises
    `OSError` if an adapter's files cannot be read or written.
    """

    def __init__(
        self, options: LoraOptions, find_sites: Callable[[], Sites], work_dir: Path
    ) -> None:
        self._options = options
        self._find_sites = cache(find_sites)
        self._work_dir = work_dir
        self._num_known = 0
        self._prefetched: dict[str, KnownAdapter] = {}
        # The adapters that clients have sent, least recently used first.
        self._sent: OrderedDict[str, KnownAdapter] = OrderedDict()
        # Maps each adapter key to the ids of the running requests that use the adapter. Adapters
        # with running requests are not evicted, because the engine may read their folders.
        self._users: defaultdict[str, set[int]] = defaultdict(set)
        if options.lora_prefetch_dir:
            self._prefetch(Path(options.lora_prefetch_dir))

    def find(self, request: GenerationRequest) -> KnownAdapter | None:
        """Return the adapter that `request` uses, or None if the request uses no adapter.

        The adapter is not evicted until `release` is called. If the client has sent a new adapter,
        this method blocks while it reads and writes the adapter's files. Raise `InvalidRequest` if
        the adapter is unknown or invalid, or if its files cannot be read or written.
        """
        key = key_of(request)
        if key is None:
            return None
        if known := self._prefetched.get(key):
            return known
        if key not in self._sent:
            if request.lora_file is None:
                raise InvalidRequest(explain_unknown(request, self._prefetched))
            self._sent[key] = self._receive(key, request, Path(request.lora_file))
            self._evict_sent(key)
        self._sent.move_to_end(key)
        self._users[key].add(request.id)
        return self._sent[key]

    def release(self, request: GenerationRequest) -> None:
        """Record that `request` no longer uses its adapter."""
        key = key_of(request)
        if key is not None and (users := self._users.get(key)):
            users.discard(request.id)

    def _prefetch(self, folder: Path) -> None:
        for key, each, adapter in read_prefetched(folder, self._read):
            is_peft = (each / PEFT_CONFIG).exists()
            self._prefetched[key] = self._add(key, each if is_peft else self._write(adapter))

    def _read(self, folder: Path) -> Adapter:
        adapter = read_adapter(folder, self._find_sites())
        self._check(adapter)
        return adapter

    def _receive(self, key: str, request: GenerationRequest, file: Path) -> KnownAdapter:
        try:
            adapter = read_received(file, self._find_sites())
            self._check(adapter)
        except BadAdapter as error:
            raise InvalidRequest(str(error)) from error
        except FileNotFoundError as error:
            raise InvalidRequest(explain_missing_file(request)) from error
        except OSError as error:
            raise InvalidRequest(
                f"the adapter cannot be read ({error.strerror or error}); check the adapter files "
                "on the server"
            ) from error
        try:
            return self._add(key, self._write(adapter))
        except OSError as error:
            raise InvalidRequest(
                "the server cannot write the adapter to its temporary folder "
                f"({error.strerror or error}); check the free disk space and the permissions on "
                "the server, then send the request again"
            ) from error

    def _check(self, adapter: Adapter) -> None:
        check_adapter(adapter, self._find_sites(), self._options.lora_cache_max_adapter_size)

    def _add(self, key: str, folder: Path) -> KnownAdapter:
        self._num_known += 1
        return KnownAdapter(key, self._num_known, folder)

    def _write(self, adapter: Adapter) -> Path:
        folder = self._work_dir / str(self._num_known + 1)
        config, weights = as_peft(adapter)
        try:
            folder.mkdir()
            (folder / PEFT_CONFIG).write_text(json.dumps(config), encoding="utf-8")
            (folder / PEFT_WEIGHTS).write_bytes(weights)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _evict_sent(self, newest: str) -> None:
        total = sum(map(_size, self._sent.values()))
        for key in [key for key in self._sent if key != newest and not self._users[key]]:
            if total <= self._options.lora_cache_host_memory_bytes:
                break
            evicted = self._sent.pop(key)
            del self._users[key]
            total -= _size(evicted)
            shutil.rmtree(evicted.folder, ignore_errors=True)


class AdapterReader:
    """Uses `AdapterFolders` in a thread, because file access would delay token generation.

    `config` may contain any field of `LoraOptions`. The constructor raises the same exceptions as
    the constructor of `AdapterFolders`, which it calls in the calling thread.
    """

    def __init__(self, checkpoint: Path, config: Mapping[str, Any]) -> None:
        self._work_dir = make_temporary_folder("tllm-peft-")
        self._folders = AdapterFolders(
            LoraOptions.of(config), site_finder(checkpoint), Path(self._work_dir.name)
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lora")

    def find(self, request: GenerationRequest) -> Future[KnownAdapter | None]:
        """Return a future for the result of `AdapterFolders.find`."""
        return self._thread.submit(self._folders.find, request)

    def release(self, request: GenerationRequest) -> None:
        """Record that `request` no longer uses its adapter."""
        if key_of(request) is not None:
            # The thread runs calls in order, so this call runs after `find` for the same request.
            self._thread.submit(self._folders.release, request)

    def close(self) -> None:
        """Stop the thread and remove the stored adapters."""
        self._thread.shutdown(cancel_futures=True)
        self._work_dir.cleanup()


def as_peft(adapter: Adapter) -> tuple[dict[str, Any], bytes]:
    """Convert `adapter` to a PEFT config and the contents of a PEFT weights file.

    All modules are padded to the largest rank, because the config contains a single rank. Raise
    `BadAdapter` if the adapter changes no modules.
    """
    check_not_empty(adapter)
    rank = max(len(change.a) for change in adapter.values())
    config = {
        "peft_type": "LORA",
        "r": rank,
        # PEFT scales by lora_alpha / r, which must be 1 because B already includes the scaling.
        "lora_alpha": rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in adapter}),
    }
    tensors = {}
    for module, change in adapter.items():
        padded = _pad(change, rank)
        tensors[f"base_model.model.{module}.lora_A.weight"] = padded.a
        tensors[f"base_model.model.{module}.lora_B.weight"] = padded.b
    return config, write_safetensors(tensors)


def site_finder(checkpoint: Path) -> Callable[[], Sites]:
    """Return a function that finds the modules with two-dimensional weights in a checkpoint.

    `checkpoint` is a folder in Hugging Face format. The function reads the headers of the
    safetensors files in this folder. It raises `BadAdapter` if a file is invalid or no file
    contains such a module, or `OSError` if a file cannot be read.
    """
    return lambda: _find_sites(checkpoint)


def _find_sites(checkpoint: Path) -> Sites:
    sites: dict[str, tuple[int, int]] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        try:
            shapes = read_shapes(file)
        except ValueError as error:
            raise BadAdapter(
                f"the model's LoRA adapters cannot be checked, because {error}; restore the "
                "checkpoint on the server"
            ) from error
        for name, shape in shapes.items():
            if name.endswith(_WEIGHT) and len(shape) == 2:
                sites[name.removesuffix(_WEIGHT)] = (shape[0], shape[1])
    if not sites:
        raise BadAdapter(
            f"{checkpoint} has no safetensors files with linear layers, so LoRA adapters cannot be "
            "checked; serve a checkpoint in safetensors format"
        )
    return sites


def _pad(change: LowRank, rank: int) -> LowRank:
    missing = rank - len(change.a)
    return LowRank(
        np.pad(change.a, ((0, missing), (0, 0))), np.pad(change.b, ((0, 0), (0, missing)))
    )


def _size(known: KnownAdapter) -> int:
    """Return the size of an adapter's files, or 0 if its folder was deleted."""
    return sum(file.stat().st_size for file in known.folder.glob("*"))
