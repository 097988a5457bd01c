"""Load the gateway's models and look them up by name."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from trtllm_serve_cli.client.address import split_address
from trtllm_serve_cli.client.generate import TritonInterface
from trtllm_serve_cli.client.model_info import CORE_MODEL, ModelInfo, fetch_model_config
from trtllm_serve_cli.errors import BadInput, RequestFailed, TllmError
from trtllm_serve_cli.gateway.adapters import (
    configure_adapter,
    find_adapter_obstacle,
    find_prefetched,
)
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.errors import ApiError, invalid, model_not_found, unavailable
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.gateway.generation.balanced_backend import BalancedBackend
from trtllm_serve_cli.gateway.generation.connect_workers import connect_workers
from trtllm_serve_cli.gateway.generation.worker_socket import find_worker_socket, has_triton
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.schema.sampling import SamplingDefaults
from trtllm_serve_cli.gateway.served_model import NO_DEFAULTS, LoadedModel, read_sampling_defaults
from trtllm_serve_cli.runtime.engines.kinds import find_kind, kind_names
from trtllm_serve_cli.runtime.stages import StageTimer
from trtllm_serve_cli.runtime.text.tokenizer import BadTokenizer, Tokenizer, load_tokenizer

_RETRY_S = 0.5
# Time, in seconds, to wait for the socket of an engine worker that restarts. It is longer than the
# longest pause before a restart, because workers listen before they load their engine.
_WORKER_RESTART_S = 35.0


class ModelRegistry:
    """The gateway's models.

    A model becomes available when the gateway has loaded the model's tokenizer and connected to its
    server. If several servers run a model, one connection is sufficient.

    After the first connection to each of a model's servers, `on_loaded` is called with the model's
    name and the duration of each loading stage in seconds. If the gateway cannot serve a model or
    an adapter, `on_refused` is called with its name and the reason. If the model's server is not
    supervised by `tllm start`, `on_waiting` is called with the model's name and the problem that
    delays the connection, each time the problem changes.
    """

    def __init__(
        self,
        config: GatewayConfig,
        on_loaded: Callable[[str, Mapping[str, float]], None] = lambda name, stages_s: None,
        on_refused: Callable[[str, str], None] = lambda name, why: None,
        on_waiting: Callable[[str, str], None] = lambda name, why: None,
    ) -> None:
        self._config = config
        self._on_loaded = on_loaded
        self._on_refused = on_refused
        self._on_waiting = on_waiting
        self._models: dict[str, LoadedModel] = {}
        # The latest connection problem of each model, keyed by model name.
        self._problems: dict[str, str] = {}
        # The reason for each model or adapter that the gateway cannot serve, keyed by name.
        self._refused: dict[str, str] = {}
        # Maps the name of each configured adapter to the name of its base model.
        self._adapter_bases = {each.name: each.model for each in config.adapters}
        # The names of the adapters that clients have loaded and not unloaded.
        self._runtime_adapters: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        # Load one tokenizer at a time. Some tokenizers import transformers, and the import fails if
        # several threads start it concurrently.
        self._tokenizer_lock = asyncio.Lock()

    @property
    def base_names(self) -> tuple[str, ...]:
        """The names of the configured models, without adapters."""
        return tuple(dict.fromkeys(each.name for each in self._config.models))

    def start(self) -> None:
        """Start loading the models in the background."""
        self._tasks = [asyncio.create_task(self._load(each)) for each in self._config.models]

    async def close(self) -> None:
        """Stop loading models and close the connections of all models."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.backend.close() for each in self._models.values()))

    def find(self, name: str) -> LoadedModel:
        """Return the model or adapter that is served as `name`.

        Raise `ApiError` with status 404 if the name is unknown, 503 if the model is not available
        yet, or 400 if the gateway cannot serve the model.
        """
        if (model := self._models.get(name)) is not None:
            return model
        names = self.base_names
        base = self._adapter_bases.get(name, name)
        if (why := self._refused.get(name) or self._refused.get(base)) is not None:
            raise invalid(
                f"The gateway cannot serve the model '{name}', because {why}. Ask the operator to "
                "fix this problem.",
                "model",
            )
        if base in names:
            raise unavailable(f"{self._describe_loading(base)}. Retry the request.")
        raise model_not_found(name, tuple(dict.fromkeys((*names, *self._models))))

    def require_only_name(self) -> str:
        """Return the name of the only configured model.

        Raise `ApiError` (400) unless exactly one model is configured.
        """
        names = self.base_names
        if len(names) != 1:
            available = ", ".join(names)
            raise invalid(f"`model` is required. Available models: {available}.", "model")
        return names[0]

    def find_generating(self, name: str) -> LoadedModel:
        """Return the model that is served as `name`, if it generates text.

        Raise `ApiError` in the same cases as `find`, and with status 400 if the model computes
        embeddings.
        """
        model = self.find(name)
        if model.info.embedding is not None:
            raise invalid(
                f"The model '{name}' computes embeddings and does not generate text. Use "
                "/v1/embeddings, or select a model that generates text.",
                "model",
                "unsupported",
            )
        return model

    def list_loaded(self) -> list[LoadedModel]:
        """Return the models and adapters that are available."""
        return list(self._models.values())

    def has_name(self, name: str) -> bool:
        """Return whether a model or an adapter has this name, even if it is not loaded yet."""
        return name in self._models or name in (*self.base_names, *self._adapter_bases)

    def has_runtime_adapter(self, name: str) -> bool:
        """Return whether a client has loaded an adapter with this name."""
        return name in self._runtime_adapters

    def add_runtime_adapter(self, adapter: LoadedModel) -> None:
        """Add an adapter that a client has loaded. Replace an adapter with the same name."""
        self._models[adapter.name] = adapter
        self._runtime_adapters.add(adapter.name)

    def remove_runtime_adapter(self, name: str) -> bool:
        """Remove an adapter that a client has loaded. Return whether the adapter existed."""
        if name not in self._runtime_adapters:
            return False
        self._runtime_adapters.remove(name)
        del self._models[name]
        return True

    def find_problems(self) -> list[str]:
        """Return a message for each configured model that cannot currently receive requests.

        Models that the gateway cannot serve at all are omitted.
        """
        problems = []
        for name in self.base_names:
            model = self._models.get(name)
            if name in self._refused:
                continue
            if model is None:
                problems.append(self._describe_loading(name))
            elif not model.backend.is_open:
                problems.append(f"The engine of the model '{name}' is not available")
        return problems

    def _describe_loading(self, name: str) -> str:
        problem = self._problems.get(name, "its server is starting")
        return f"The model '{name}' is not ready ({problem})"

    async def _load(self, served: ServedModel) -> None:
        stages = StageTimer()
        reported = ""
        while True:
            try:
                self._add(await self._connect(served, stages))
                self._problems.pop(served.name, None)
                # Without this call, each full garbage collection would scan the objects of all
                # imported libraries and delay all streams by up to 70 ms.
                gc.freeze()
                self._on_loaded(served.name, stages.durations_s)
                return
            except _CannotServe as error:
                self._refused[served.name] = str(error)
                self._on_refused(served.name, str(error))
                return
            except (TllmError, ApiError, OSError) as error:
                problem = (getattr(error, "what", None) or str(error)).removesuffix(".")
                self._problems[served.name] = problem
                # A supervisor reports the problems of the server that it started.
                if problem != reported and self._config.server_directory is None:
                    reported = problem
                    self._on_waiting(served.name, problem)
            await asyncio.sleep(_RETRY_S)

    def _add(self, model: LoadedModel) -> None:
        """Add a model and its adapters.

        If several servers serve the model, distribute requests among them.
        """
        if self._has_several_servers(model.name):
            known = self._models.get(model.name)
            known = known or dataclasses.replace(model, backend=BalancedBackend())
            assert isinstance(known.backend, BalancedBackend)
            known.backend.add(model.backend)
            model = known
        self._models[model.name] = model
        self._add_adapters(model)

    def _add_adapters(self, model: LoadedModel) -> None:
        """Add a model for each adapter in the configuration and in the engine's prefetch folder.

        Skip an adapter if its name is already in use. If the model cannot use adapters, refuse the
        configured adapters.
        """
        adapters = [each for each in self._config.adapters if each.model == model.name]
        if adapters and (why := find_adapter_obstacle(model)) is not None:
            for each in adapters:
                self._refused[each.name] = f"the model '{model.name}' cannot use adapters: {why}"
                self._on_refused(each.name, self._refused[each.name])
            return
        configured = [configure_adapter(model, each) for each in adapters]
        for adapter in (*configured, *find_prefetched(model)):
            self._models.setdefault(adapter.name, adapter)

    def _has_several_servers(self, name: str) -> bool:
        return sum(each.name == name for each in self._config.models) > 1

    async def _connect(self, served: ServedModel, stages: StageTimer) -> LoadedModel:
        # Query the supervised server over HTTP, to avoid importing gRPC. The gateway usually does
        # not need gRPC, because it sends requests directly to the server's engine worker.
        interface: TritonInterface = "grpc" if self._config.server_directory is None else "http"
        info = await asyncio.to_thread(_fetch_info, served, interface)
        if self._config.tokenizer_dir is not None:
            info = dataclasses.replace(info, tokenizer_dir=self._config.tokenizer_dir)
        stages.end("wait_for_server")
        async with self._tokenizer_lock:
            tokenizer = await asyncio.to_thread(_load_tokenizer, info)
        stages.end("load_tokenizer")
        template = self._make_template(info)
        backend = await self._make_backend(served, info, tokenizer)
        created = find_creation_time(served, info)
        model = LoadedModel(served.name, info, tokenizer, backend, template, created)
        stages.end("connect")
        return dataclasses.replace(model, sampling_defaults=find_defaults(self._config, info))

    def _make_template(self, info: ModelInfo) -> ChatTemplate | None:
        """Return the model's chat template, or None if the model does not have one.

        Raise `_CannotServe` if the configured tool parser is unknown.
        """
        parser = self._config.tool_parser
        try:
            return ChatTemplate.of(info, self._config.chat_template, parser)
        except BadInput as error:
            why = f"the tool parser {parser!r} does not exist; {error.next_step}"
            raise _CannotServe(why) from error

    async def _make_backend(
        self, served: ServedModel, info: ModelInfo, tokenizer: Tokenizer
    ) -> Backend:
        """Return a backend for the model.

        If `tllm start` supervises the server and the server has engine workers, connect to the
        workers. Otherwise, connect to Triton. Raise `_CannotServe` if Triton's core model does not
        accept token ids. Also raise the errors of `connect_workers` and `fetch_model_config`.
        """
        core = info.name if info.embedding else info.name_of(CORE_MODEL)
        if self._config.server_directory is not None:
            # In the llmapi and vllm layouts, the text model itself starts the engine worker.
            names = tuple(dict.fromkeys((core, info.name)))
            if (backend := await self._connect_workers(served, names, tokenizer)) is not None:
                return backend
        core_info = await asyncio.to_thread(fetch_model_config, served.endpoint, core)
        if "input_ids" not in core_info.inputs:
            raise _CannotServe(f"the Triton model {core} does not have an input named input_ids")
        # Import gRPC only if it is needed: the import takes 16 MB of memory.
        from trtllm_serve_cli.gateway.generation.triton_backend import TritonBackend

        return TritonBackend(served.endpoint, core_info, tokenizer)

    async def _connect_workers(
        self, served: ServedModel, names: tuple[str, ...], tokenizer: Tokenizer
    ) -> Backend | None:
        """Return a backend for the engine workers of the first of the models `names` with workers.

        Return None if none of the models has a worker. While a worker restarts, it has no socket.
        If the first model should have a worker, wait up to `_WORKER_RESTART_S` seconds for it.
        """
        directory = Path(self._config.server_directory or "")
        has_ranks = self._has_several_servers(served.name)
        port = split_address(served.endpoint.http)[1] if has_ranks else None
        deadline_s = time.monotonic() + _WORKER_RESTART_S
        while True:
            for name in names:
                find = partial(find_worker_socket, directory, name, http_port=port)
                if (backend := await connect_workers(find, tokenizer)) is not None:
                    return backend
            if time.monotonic() > deadline_s or not await asyncio.to_thread(
                _should_have_worker, served, names[0], directory, port
            ):
                return None
            await asyncio.sleep(_RETRY_S)


def find_creation_time(served: ServedModel, info: ModelInfo) -> int:
    """Return the model's import time in seconds since the epoch.

    If the import time is unknown, return the modification time of the tokenizer's folder, or 0 if
    the folder cannot be read. All gateway processes return the same time, and a restart does not
    change it.
    """
    if served.created_at is not None:
        return served.created_at
    with contextlib.suppress(OSError):
        return int(Path(info.tokenizer_dir or "").stat().st_mtime)
    return 0


def find_defaults(config: GatewayConfig, info: ModelInfo) -> SamplingDefaults:
    """Return the default sampling parameters of a model.

    Return `NO_DEFAULTS` if the configuration disables the defaults, or if the tokenizer's folder,
    which contains `generation_config.json`, is unknown.
    """
    if config.generation_config == "off" or info.tokenizer_dir is None:
        return NO_DEFAULTS
    return read_sampling_defaults(Path(info.tokenizer_dir))


def _should_have_worker(
    served: ServedModel, name: str, directory: Path, http_port: int | None
) -> bool:
    """Return whether the model `name` starts a worker that accepts connections of the gateway."""
    info = fetch_model_config(served.endpoint, name, "http")
    kind = find_kind(info.engine_kind) if info.engine_kind in kind_names() else None
    has_worker = kind is not None and kind.load is not None and not info.has_queue_policy
    return has_worker and has_triton(directory, http_port)


class _CannotServe(Exception):
    """Raised if the gateway cannot serve a model even though the model's server is ready."""


def _fetch_info(served: ServedModel, interface: TritonInterface) -> ModelInfo:
    """Return the text model's settings.

    If its configuration does not set `vocab_size`, `tokenizer_dir` or `lora_prefetch_dir`, use the
    value from the `tensorrt_llm` or `preprocessing` model that it calls. If `tokenizer_dir` is
    still missing, use the value in `served`. `settings_hash` covers the parameters of all these
    models. Raise `NoServer` if the server cannot be reached, or `RequestFailed` if it does not
    return the text model's configuration.
    """
    info = fetch_model_config(served.endpoint, served.text_model, interface)
    for role in (CORE_MODEL, "preprocessing"):
        name = info.name_of(role)
        with contextlib.suppress(RequestFailed):
            part = fetch_model_config(served.endpoint, name, interface)
            # NVIDIA's text models do not have the tokenizer_dir parameter, so use the value of a
            # model that the text model calls.
            folder = info.tokenizer_dir or part.tokenizer_dir
            adapters = info.lora_prefetch_dir or part.lora_prefetch_dir
            info = dataclasses.replace(
                info,
                vocab_size=info.vocab_size or part.vocab_size,
                tokenizer_dir=folder,
                lora_prefetch_dir=adapters,
                settings_hash=info.settings_hash + part.settings_hash,
            )
    return dataclasses.replace(info, tokenizer_dir=info.tokenizer_dir or served.tokenizer_dir)


def _load_tokenizer(info: ModelInfo) -> Tokenizer:
    if info.tokenizer_dir is None:
        raise _CannotServe(f"the configuration of the model {info.name} does not set tokenizer_dir")
    try:
        return load_tokenizer(Path(info.tokenizer_dir))
    except ImportError as error:
        # If an optional package is missing, transformers raises an `ImportError` without a `name`.
        package = f"the {error.name} package" if error.name else f"another package: {error}"
        raise _CannotServe(f"its tokenizer requires {package}") from error
    except BadTokenizer as error:
        raise _CannotServe(str(error)) from error
