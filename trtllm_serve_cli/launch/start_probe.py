"""Check that a started server is usable and warm it up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trtllm_serve_cli.client.server import probe_model
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.warmup import warm_up


@dataclass(slots=True)
class StartProbe:
    """The readiness checks and the warm-up of one server start.

    - `timeout_s`: timeout for each request, in seconds.
    - `is_gateway_healthy`: returns whether the gateway reports that all models can receive
      requests.
    - `first_token_at`: when all loaded text models had responded, in seconds since the epoch.
    - `warmup_at`: when the warm-up began, in seconds since the epoch.
    - `problems`: a message for each failed warm-up request.
    - `is_ready`: set when the server is usable and the warm-up has finished.
    """

    plan: LaunchPlan
    timeout_s: float
    is_gateway_healthy: Callable[[], bool] = lambda: True
    first_token_at: float | None = None
    warmup_at: float | None = None
    problems: tuple[str, ...] = ()
    is_ready: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Check the server once and set `is_ready` if the server is usable.

        Warm up the server after the first successful check. If a warm-up request fails, check the
        models again before setting `is_ready`, because the request may have broken an engine.
        """
        with contextlib.suppress(TllmError):
            self._probe_models()
            self.first_token_at = self.first_token_at or time.time()
            if not self.is_gateway_healthy():
                return
            if self.plan.warmup and self.warmup_at is None:
                self.warmup_at = time.time()
                self.problems = tuple(warm_up(self.plan, self.timeout_s))
                if self.problems:
                    self._probe_models()
            self.is_ready.set()

    def _probe_models(self) -> None:
        """Raise `TllmError` if a loaded model fails to generate a token or compute an embedding."""
        loaded = [model for model in self.plan.text_models if model in self.plan.loading]
        for endpoint in (self.plan.endpoint, *self.plan.replicas):
            for model in loaded:
                probe_model(endpoint, model, self.timeout_s, "http")
