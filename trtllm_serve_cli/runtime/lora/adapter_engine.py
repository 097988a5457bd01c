"""Serve several LoRA adapters by running one engine per loaded adapter.

Each step runs one step of every engine that has requests, so requests with different adapters run
concurrently. A separate thread reads and loads adapters without delaying other requests. At most
`max_loras` adapters are loaded. If a request needs another adapter when this limit is reached, an
idle adapter is unloaded first. If no adapter is idle, new requests with the least recently used
adapter wait until an adapter is idle and can be unloaded.

The weights of unloaded adapters stay in memory, because they are small. If the total size of the
adapters that clients have sent exceeds `lora_cache_host_memory_bytes`, unused adapters are evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..engine import COUNTS, Engine, EngineStats, GenerationRequest, InvalidRequest, SequenceUpdate
from ..log import write_traceback
from .adapter import Adapter, BadAdapter, Sites, check_adapter
from .adapter_request import (
    LoraOptions,
    explain_missing_file,
    explain_unknown,
    key_of,
    read_prefetched,
    read_received,
)
from .peft import read_adapter

# The maximum time that a step waits for an adapter if no requests are running, in seconds.
_IDLE_WAIT_S = 0.02


class LoraEngine:
    """An engine that runs requests with and without LoRA adapters.

    - `base`: the engine for requests without an adapter.
    - `load`: creates an engine for the requests that use a given adapter.
    - `find_sites`: returns the modules that an adapter can change, or raises `BadAdapter` if the
      model has no such modules.

    An adapter's key is its name, or its `lora_task_id` as text. The constructor reads
    `lora_prefetch_dir`. It raises `BadAdapter` if the folder or an adapter in it is invalid, or
    `OSError` if a file cannot be read.
    """

    def __init__(
        self,
        base: Engine,
        load: Callable[[Adapter], Engine],
        find_sites: Callable[[], Sites],
        options: LoraOptions,
    ) -> None:
        self.limits = base.limits
        self._base = base
        self._load = load
        self._find_sites = find_sites
        self._options = options
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lora")
        self._prefetched: dict[str, Adapter] = {}
        self._sent: OrderedDict[str, Adapter] = OrderedDict()
        # The loaded adapters, least recently used first.
        self._loaded: OrderedDict[str, Engine] = OrderedDict()
        self._draining: str | None = None
        # The sum of each counter over all unloaded engines. `stats` adds these sums to its totals,
        # because counters must never decrease.
        self._retired_counts = dict.fromkeys(COUNTS, 0)
        self._reading: dict[str, Future[Adapter]] = {}
        self._loading: dict[str, Future[Engine]] = {}
        self._waiting: dict[str, list[GenerationRequest]] = {}
        if options.lora_prefetch_dir:
            self._prefetch(Path(options.lora_prefetch_dir))

    def submit(self, request: GenerationRequest) -> None:
        key = key_of(request)
        if key is None:
            self._base.submit(request)
            return
        if not self._is_known(key):
            if request.lora_file is None:
                raise InvalidRequest(explain_unknown(request, self._prefetched))
            self._reading[key] = self._thread.submit(self._read_sent, Path(request.lora_file))
        self._waiting.setdefault(key, []).append(request)

    def cancel(self, request_id: int) -> None:
        for key, requests in list(self._waiting.items()):
            self._waiting[key] = [each for each in requests if each.id != request_id]
            if not self._waiting[key] and key not in self._reading:
                del self._waiting[key]
        for engine in self._engines():
            engine.cancel(request_id)

    def has_work(self) -> bool:
        return bool(self._waiting) or any(engine.has_work() for engine in self._engines())

    def step(self) -> list[SequenceUpdate]:
        updates = [*self._collect_read(), *self._collect_loaded(), *self._admit()]
        self._make_room()
        busy = [engine for engine in self._engines() if engine.has_work()]
        for engine in busy:
            updates += engine.step()
        if not busy and not updates:
            pending: list[Future[Any]] = [*self._reading.values(), *self._loading.values()]
            wait(pending, timeout=_IDLE_WAIT_S)
        return updates

    def stats(self) -> EngineStats:
        all_stats = [engine.stats() for engine in self._engines()]
        num_waiting = sum(len(each) for each in self._waiting.values())
        total = {
            name: sum(getattr(stats, name) for stats in all_stats)
            for name in EngineStats.__slots__
            if name not in ("memory_bytes", "tokens_per_block")
        }
        total |= {name: total[name] + self._retired_counts[name] for name in COUNTS}
        total["active_requests"] += num_waiting
        total["waiting_requests"] += num_waiting
        return replace(all_stats[0], **total)

    def close(self) -> None:
        for engine in self._engines():
            engine.close()

    def _engines(self) -> list[Engine]:
        return [self._base, *self._loaded.values()]

    def _is_known(self, key: str) -> bool:
        return key in self._prefetched or key in self._sent or key in self._reading

    def _prefetch(self, folder: Path) -> None:
        """Read all adapters in `folder` and load the first `max_loras` of them."""
        sites = self._find_sites()

        def read(each: Path) -> Adapter:
            adapter = read_adapter(each, sites)
            self._check(adapter, sites)
            return adapter

        self._prefetched = {key: adapter for key, _, adapter in read_prefetched(folder, read)}
        for key in list(self._prefetched)[: self._options.max_loras]:
            self._loaded[key] = self._load(self._prefetched[key])

    def _read_sent(self, file: Path) -> Adapter:
        sites = self._find_sites()
        adapter = read_received(file, sites)
        self._check(adapter, sites)
        return adapter

    def _check(self, adapter: Adapter, sites: Sites) -> None:
        check_adapter(adapter, sites, self._options.lora_cache_max_adapter_size)
        limit = self._options.lora_cache_host_memory_bytes
        if _size(adapter) > limit:
            raise BadAdapter(
                f"the adapter requires {_size(adapter)} bytes in float32, but this server accepts "
                f"at most {limit} bytes (lora_cache_host_memory_bytes); use a smaller adapter"
            )

    def _collect_read(self) -> list[SequenceUpdate]:
        updates: list[SequenceUpdate] = []
        for key in [key for key, future in self._reading.items() if future.done()]:
            try:
                self._sent[key] = self._reading.pop(key).result()
                self._evict_sent(key)
            except BadAdapter as error:
                updates += self._fail(key, str(error), rejected=True)
            except FileNotFoundError:
                requests = self._waiting.get(key)
                why = explain_missing_file(requests[0]) if requests else ""
                updates += self._fail(key, why, rejected=True)
            except Exception as error:  # an error must not affect requests with other adapters
                write_traceback()
                why = f"the adapter could not be read: {error}; see the server's log"
                updates += self._fail(key, why)
        return updates

    def _collect_loaded(self) -> list[SequenceUpdate]:
        updates: list[SequenceUpdate] = []
        for key in [key for key, future in self._loading.items() if future.done()]:
            try:
                self._loaded[key] = self._loading.pop(key).result()
            except Exception as error:  # engine packages may raise any type of exception
                write_traceback()
                why = f"the adapter could not be loaded: {error}; see the server's log"
                updates += self._fail(key, why)
        return updates

    def _fail(self, key: str, why: str, *, rejected: bool = False) -> list[SequenceUpdate]:
        return [
            SequenceUpdate(each.id, error=why, rejected=rejected)
            for each in self._waiting.pop(key, [])
        ]

    def _admit(self) -> list[SequenceUpdate]:
        """Submit the waiting requests whose adapters are loaded and not draining.

        Return an update with an error for each request that cannot be submitted.
        """
        updates: list[SequenceUpdate] = []
        for key in [key for key in self._waiting if key in self._loaded and key != self._draining]:
            self._loaded.move_to_end(key)
            if key in self._sent:
                self._sent.move_to_end(key)
            for request in self._waiting.pop(key):
                try:
                    self._loaded[key].submit(request)
                except InvalidRequest as error:
                    updates.append(SequenceUpdate(request.id, error=str(error), rejected=True))
                except Exception as error:  # an error in one request must not affect other requests
                    write_traceback()
                    why = f"the engine could not accept the request: {error}; see the server's log"
                    updates.append(SequenceUpdate(request.id, error=why))
        return updates

    def _make_room(self) -> None:
        """Start loading the next requested adapter, unless another adapter is being loaded.

        If `max_loras` adapters are loaded, unload an idle adapter first. If no adapter is idle, set
        `_draining` to the least recently used adapter and load nothing.
        """
        self._draining = None
        ready = (key for key in self._waiting if key in self._sent or key in self._prefetched)
        key = next((key for key in ready if key not in self._loaded), None)
        if key is None or self._loading:
            return
        if len(self._loaded) >= self._options.max_loras:
            idle = (key for key, engine in self._loaded.items() if not engine.has_work())
            # While an adapter drains, `_admit` submits no requests with it.
            oldest = next(iter(self._loaded))
            evicted = next(idle, None)
            if evicted is None:
                self._draining = oldest
                return
            engine = self._loaded.pop(evicted)
            stats = engine.stats()
            self._retired_counts = {
                name: self._retired_counts[name] + getattr(stats, name) for name in COUNTS
            }
            # Close the engine in the adapter thread, because `close` may wait for the guide check
            # of a cancelled request.
            self._thread.submit(engine.close)
        adapter = self._prefetched.get(key) or self._sent[key]
        self._loading[key] = self._thread.submit(self._load, adapter)

    def _evict_sent(self, newest: str) -> None:
        """Limit the size of the adapters from clients to `lora_cache_host_memory_bytes`.

        Evict the least recently used adapters first. Do not evict `newest`, or an adapter that is
        loaded, is being loaded, or is needed by a waiting request.
        """
        used = {newest, *self._loaded, *self._loading, *self._waiting}
        total = sum(map(_size, self._sent.values()))
        for key in [key for key in self._sent if key not in used]:
            if total <= self._options.lora_cache_host_memory_bytes:
                break
            total -= _size(self._sent.pop(key))


def load_with_adapters(
    load: Callable[..., Engine],
    find_sites: Callable[[], Sites],
    config: Mapping[str, Any],
) -> LoraEngine:
    """Return an engine that calls `load` to load its base engine and one engine per adapter.

    `load(config)` returns the base engine, and `load(config, adapter)` returns the engine for
    `adapter`.
    """
    return LoraEngine(load(config), partial(load, config), find_sites, LoraOptions.of(config))


def _size(adapter: Adapter) -> int:
    return sum(change.a.nbytes + change.b.nbytes for change in adapter.values())
