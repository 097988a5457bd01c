"""Handle `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, as in vLLM's server.

Source of the fields and responses: vllm/entrypoints/openai/models/serving.py in
vllm-project/vllm (commit 00153c8b7948). The additional `model` field selects the base model if the
gateway serves several models. The engine worker, or the gateway itself, reads the adapter from a
folder on the gateway's machine. For security, the folder must be below the operator's
`runtime_lora_dir`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from pathlib import Path
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trtllm_serve_cli.gateway.access.call import find_call
from trtllm_serve_cli.gateway.adapters import find_adapter_obstacle
from trtllm_serve_cli.gateway.config import ADAPTER_NAME
from trtllm_serve_cli.gateway.errors import ApiError, invalid
from trtllm_serve_cli.gateway.generation.generation import Generation, GenerationPlan
from trtllm_serve_cli.gateway.http import read_json
from trtllm_serve_cli.gateway.model_registry import ModelRegistry
from trtllm_serve_cli.gateway.served_model import LoadedModel

AdapterName = Annotated[str, msgspec.Meta(pattern=ADAPTER_NAME)]


class LoadAdapterBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/load_lora_adapter`."""

    lora_name: AdapterName
    # Absolute, or relative to `runtime_lora_dir`.
    lora_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    # Whether the adapter replaces a loaded adapter with the same name.
    load_inplace: bool = False
    # The base model. Required if the gateway serves several models.
    model: str | None = None


class UnloadAdapterBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/unload_lora_adapter`."""

    lora_name: AdapterName


async def load_adapter(request: Request) -> Response:
    """Load a LoRA adapter and serve it as a model with the adapter's name."""
    root = _check_allowed(request)
    body = await read_json(request, LoadAdapterBody)
    registry: ModelRegistry = request.app.state.models
    _check_name(registry, body)
    base = _find_base(registry, body.model)
    if (why := find_adapter_obstacle(base)) is not None:
        raise invalid(
            f"The model '{base.name}' cannot load LoRA adapters at run time, because {why}.",
            "model",
            "unsupported_parameter",
        )
    folder = find_adapter_folder(root, body.lora_path)
    # The engine caches adapters by name. Use a unique name, so that the engine does not reuse an
    # adapter that a client loaded earlier under the same name.
    adapter = dataclasses.replace(
        base.with_adapter(
            body.lora_name,
            lora_name=f"{body.lora_name}-{uuid.uuid4().hex[:8]}",
            lora_folder=str(folder),
        ),
        created=int(time.time()),
    )
    await _try(adapter)
    # Check the name again: a concurrent request may have loaded an adapter with the same name.
    _check_name(registry, body)
    registry.add_runtime_adapter(adapter)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """Stop serving an adapter that a client has loaded. Requests in flight continue."""
    _check_allowed(request)
    body = await read_json(request, UnloadAdapterBody)
    registry: ModelRegistry = request.app.state.models
    if not registry.remove_runtime_adapter(body.lora_name):
        raise ApiError(
            404,
            f"The LoRA adapter '{body.lora_name}' cannot be unloaded, because it was not loaded "
            "with /v1/load_lora_adapter. Send the name of an adapter that a client has loaded.",
            param="lora_name",
            code="model_not_found",
        )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def find_adapter_folder(root: Path, path: str) -> Path:
    """Return the adapter's folder at `path`, which must be below `root`.

    A relative `path` is relative to `root`. Raise `ApiError` (400) if the folder does not exist, is
    `root` itself, or is outside `root`. The message is the same in all cases, so that clients
    cannot probe for existing files.
    """
    folder = None
    resolved = root
    # `resolve` raises ValueError for null characters, and RuntimeError for symlink loops.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        resolved = root.resolve()
        folder = (resolved / path).resolve()
    if (
        folder is None
        or folder == resolved
        or not folder.is_relative_to(resolved)
        or not folder.is_dir()
    ):
        raise invalid(
            "`lora_path` is not a subfolder of the folder set with --runtime-lora-dir. Send the "
            "adapter's path relative to this folder.",
            "lora_path",
        )
    # If `root` is a symbolic link, an engine in a container can read only `root` itself.
    return root / folder.relative_to(resolved)


def _check_allowed(request: Request) -> Path:
    """Return the folder from which clients may load adapters.

    Raise `ApiError` (403) if clients may not load adapters, or if the API key is restricted to
    certain models.
    """
    folder = request.app.state.config.runtime_lora_dir
    if folder is None:
        raise ApiError(
            403,
            "Loading LoRA adapters at run time is disabled. Ask the operator to start the server "
            "with --runtime-lora-dir DIR.",
        )
    key = find_call(request.scope).key
    if key is not None and key.models:
        raise ApiError(
            403,
            "The API key is restricted to specific models, so it cannot load or unload LoRA "
            "adapters. Use a key without model restrictions.",
        )
    return Path(folder)


def _check_name(registry: ModelRegistry, body: LoadAdapterBody) -> None:
    name = body.lora_name
    if registry.has_runtime_adapter(name):
        if not body.load_inplace:
            raise invalid(
                f"The LoRA adapter '{name}' is already loaded. Set `load_inplace` to true to "
                "replace it.",
                "lora_name",
            )
    elif registry.has_name(name):
        raise invalid(f"A model named '{name}' already exists. Choose another name.", "lora_name")


def _find_base(registry: ModelRegistry, name: str | None) -> LoadedModel:
    if name is None:
        names = registry.base_names
        if len(names) > 1:
            raise invalid(
                "`model` is required, because the gateway serves several models: "
                f"{', '.join(names)}. Set `model` to the adapter's base model.",
                "model",
            )
        name = names[0]
    base = registry.find(name)
    if base.root is not None:
        raise invalid(
            f"The model '{name}' is a LoRA adapter. Set `model` to its base model.", "model"
        )
    return base


async def _try(adapter: LoadedModel) -> None:
    """Generate one token with an adapter to check that the engine can load the adapter.

    Raise `ApiError` if the engine rejects the adapter or cannot complete the request.
    """
    fields = {
        "input_ids": (adapter.tokenizer.end_id,),
        "max_new_tokens": 1,
        "num_return_sequences": 1,
        "top_k": 1,
        **adapter.adapter_fields,
    }
    batches = Generation(adapter.backend, [GenerationPlan(fields)]).batches()
    try:
        async for _ in batches:
            pass
    except ApiError as error:
        error.param = error.param or "lora_path"
        raise
    finally:
        await batches.aclose()
