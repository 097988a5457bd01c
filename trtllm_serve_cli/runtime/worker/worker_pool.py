"""Distribute the requests of a text model across the engine workers of `tensorrt_llm`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..engine import EngineLimits
from .least_busy import LeastBusyChooser
from .worker_link import (
    RECONNECTION_TIMEOUT_S,
    OnStep,
    OnUpdate,
    SharedWorkerClient,
    WorkerFailed,
    worker_socket_name,
)

_POLL_S = 0.05


class WorkerPool:
    """Connections to the workers of all engines of the model `name`.

    Each request is sent to the connected worker with the fewest requests from this pool. `on_step`
    receives the updates of each worker. See `WorkerLink`.
    """

    def __init__(self, name: str, on_step: OnStep = lambda updates: None) -> None:
        self._name = name
        self._on_step = on_step
        self._lock = threading.Lock()
        self._chooser = LeastBusyChooser()
        # All connections count together, so that request ids are unique in the pool.
        self._ids = itertools.count(1)
        self._link_of: dict[int, SharedWorkerClient] = {}
        self._links = [self._connect(0)]

    @property
    def was_open(self) -> bool:
        """True if a worker has ever been connected. See `SharedWorkerClient`."""
        return any(each.was_open for each in self._links)

    @property
    def limits(self) -> EngineLimits:
        """The engine's limits. A worker must have been connected."""
        return self._known.limits

    @property
    def excludes_input(self) -> bool:
        """True if the workers' model excludes prompts from responses by default."""
        return self._known.excludes_input

    def submit(self, fields: Mapping[str, Any], on_update: OnUpdate) -> int:
        """Send a request to a worker and return the request id. See `WorkerLink.submit`.

        Call `forget` or `cancel` when the request has ended.
        """
        self._connect_to_all()
        candidates = [each for each in self._links if each.is_open]
        if not candidates:
            raise WorkerFailed("the engine worker is being restarted; retry the request")
        link = self._chooser.choose(candidates, lambda each: each.num_in_flight)
        request_id = link.submit(fields, on_update)
        self._link_of[request_id] = link
        return request_id

    def cancel(self, request_id: int) -> None:
        """Cancel a request, free its slot in the engine, and stop delivering its updates."""
        if (link := self._link_of.pop(request_id, None)) is not None:
            link.cancel(request_id)

    def forget(self, request_id: int) -> None:
        """Stop delivering the updates of a request."""
        if (link := self._link_of.pop(request_id, None)) is not None:
            link.forget(request_id)

    def wait_for_reconnection(self, timeout_s: float = RECONNECTION_TIMEOUT_S) -> None:
        """Wait until a worker is connected, but not longer than `timeout_s` seconds.

        The supervisor reports a restarted worker as ready when the worker has loaded its engine.
        The connection to it may be established a moment later.
        """
        deadline_s = time.monotonic() + timeout_s
        while not any(each.is_open for each in self._links) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        for each in self._links:
            each.close()

    def _connect_to_all(self) -> None:
        """Add the connections to the other engines. The first engine reports their number."""
        with self._lock:
            for engine in range(len(self._links), self._links[0].num_engines):
                self._links.append(self._connect(engine))

    def _connect(self, engine: int) -> SharedWorkerClient:
        name = worker_socket_name(self._name, engine)
        return SharedWorkerClient(name, self._on_step, ids=self._ids)

    @property
    def _known(self) -> SharedWorkerClient:
        return next(each for each in self._links if each.was_open)
