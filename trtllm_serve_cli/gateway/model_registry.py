"""Load the gateway's models, and find them by name."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from trtllm_serve_cli.client.model_info import CORE_MODEL, ModelInfo, fetch_model_config
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.gateway.errors import ApiError, model_not_found, unavailable
from trtllm_serve_cli.gateway.generation.backend import Backend
from trtllm_serve_cli.gateway.generation.triton_backend import TritonBackend
from trtllm_serve_cli.gateway.generation.worker_backend import WorkerBackend
from trtllm_serve_cli.gateway.generation.worker_socket import find_worker_socket
from trtllm_serve_cli.gateway.prompts.chat_template import ChatTemplate
from trtllm_serve_cli.gateway.served_model import LoadedModel
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer, load_tokenizer

_RETRY_S = 0.5


class ModelRegistry:
    """The models of a gateway. A model can be used as soon as its server has loaded it."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._models: dict[str, LoadedModel] = {}
        self._problems: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start loading the models."""
        self._tasks = [asyncio.create_task(self._load(each)) for each in self._config.models]

    async def close(self) -> None:
        """Close the connections of all models."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.backend.close() for each in self._models.values()))

    def find(self, name: str) -> LoadedModel:
        """Return the model that clients call `name`.

        Raise `ApiError` with the status 404 if the name is unknown, or 503 if the model's server
        has not loaded it yet.
        """
        if (model := self._models.get(name)) is not None:
            return model
        names = tuple(each.name for each in self._config.models)
        if name in names:
            raise unavailable(f"{self._describe_loading(name)}; retry the request.")
        raise model_not_found(name, names)

    def list_loaded(self) -> list[LoadedModel]:
        """Return the models that can be used."""
        return list(self._models.values())

    def find_problems(self) -> list[str]:
        """Return a sentence for each model that cannot receive requests now."""
        problems = []
        for name in (each.name for each in self._config.models):
            model = self._models.get(name)
            if model is None:
                problems.append(self._describe_loading(name))
            elif not model.backend.is_open:
                problems.append(f"The engine of the model '{name}' is being restarted")
        return problems

    def _describe_loading(self, name: str) -> str:
        problem = self._problems.get(name, "its server is starting")
        return f"The model '{name}' is not ready ({problem})"

    async def _load(self, served: ServedModel) -> None:
        while True:
            try:
                self._models[served.name] = await self._connect(served)
                self._problems.pop(served.name, None)
                return
            except (TllmError, ApiError, OSError, ImportError) as error:
                self._problems[served.name] = getattr(error, "what", None) or str(error)
            await asyncio.sleep(_RETRY_S)

    async def _connect(self, served: ServedModel) -> LoadedModel:
        info = await asyncio.to_thread(fetch_model_config, served.endpoint, served.text_model)
        tokenizer = await asyncio.to_thread(_load_tokenizer, info)
        backend = await self._make_backend(served, info, tokenizer)
        template = ChatTemplate.of(info, self._config.chat_template)
        return LoadedModel(served.name, info, tokenizer, backend, template, int(time.time()))

    async def _make_backend(
        self, served: ServedModel, info: ModelInfo, tokenizer: Tokenizer
    ) -> Backend:
        """Connect to the model's engine worker if there is one, otherwise to Triton."""
        directory = self._config.server_directory
        name = info.name_of(CORE_MODEL)
        core = await asyncio.to_thread(fetch_model_config, served.endpoint, name)
        if directory is not None:
            find = partial(find_worker_socket, Path(directory), name)
            if await asyncio.to_thread(find) is not None:
                worker = WorkerBackend(find, tokenizer)
                while not worker.is_open:
                    await asyncio.sleep(0.01)
                return worker
        return TritonBackend(served.endpoint, core, tokenizer)


def _load_tokenizer(info: ModelInfo) -> Tokenizer:
    if info.tokenizer_dir is None:
        raise unavailable("its configuration does not contain tokenizer_dir")
    return load_tokenizer(Path(info.tokenizer_dir))
