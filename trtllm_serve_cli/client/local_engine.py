"""Run requests on an engine worker in a child process, without a server.

The worker is the same program that Triton starts for the model. It runs the copy of the `runtime`
package in the model repository, with the settings of the `tensorrt_llm` model.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from trtllm_serve_cli.client.generate import GenerateRequest, Piece
from trtllm_serve_cli.client.model_info import ModelInfo, parse_model_config
from trtllm_serve_cli.client.transport import error_mapping
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.client.transport.tensors import plan_inputs
from trtllm_serve_cli.errors import (
    BadInput,
    MissingPart,
    RepositoryError,
    RequestFailed,
    TllmError,
)
from trtllm_serve_cli.repository.model.model_repository import OpenRepository, unreadable
from trtllm_serve_cli.repository.model.runtime_copy import RUNTIME_PACKAGE
from trtllm_serve_cli.repository.model.store import command_to_import_again
from trtllm_serve_cli.repository.pbtxt import PbtxtError, parse_config
from trtllm_serve_cli.runtime.engine import InvalidRequest, SequenceUpdate
from trtllm_serve_cli.runtime.engines.kinds import find_kind, reject_tensors
from trtllm_serve_cli.runtime.text.detokenize import StreamDecoder
from trtllm_serve_cli.runtime.text.preprocessor import TEXT_INPUTS, Preprocessor, encode_text
from trtllm_serve_cli.runtime.text.tokenizer import BadTokenizer, Tokenizer, load_tokenizer
from trtllm_serve_cli.runtime.triton.core_inputs import CORE_NAMES
from trtllm_serve_cli.runtime.triton.parameters import Parameters
from trtllm_serve_cli.runtime.triton.tensors import SUPPORTED_INPUTS, Array, parse_rows
from trtllm_serve_cli.runtime.worker.worker_link import WorkerFailed
from trtllm_serve_cli.runtime.worker.worker_process import WorkerProcess

_CORE_MODEL = "tensorrt_llm"


class LocalEngine:
    """An engine worker and a tokenizer that serve one model to this process.

    `info` contains the model's settings in the format that a server reports. Call `close` to stop
    the worker.
    """

    def __init__(self, repository: OpenRepository) -> None:
        """Start the worker, which may take minutes if the engine is large.

        Raise `BadInput` if the engine runs only inside Triton, or if the repository lacks a model.
        Raise `RepositoryError` if a `config.pbtxt` or the tokenizer is invalid. Raise `MissingPart`
        if the tokenizer's package is not installed. Raise `RequestFailed` if the worker does not
        start.
        """
        _check_layout(repository)
        self._kind = repository.kind
        core = _read_parameters(repository, _CORE_MODEL)
        text = _read_parameters(repository, repository.name)
        self.info = read_info(repository)
        self._tokenizer = _load_tokenizer(self.info, repository)
        self._skips_special_tokens = text.flag("skip_special_tokens", True)
        self._preprocessor = Preprocessor.of(text, lambda: self._tokenizer)
        worker_config = find_kind(self._kind).worker_config
        assert worker_config is not None
        self._worker = WorkerProcess(
            self._kind,
            {**worker_config(core), "guests": "", "for_guests": {}},
            command=(core.text("engine_python", sys.executable), "-m", f"{RUNTIME_PACKAGE}.worker"),
            python_path=repository.path / _CORE_MODEL / "1",
            logs_start=False,
        )
        try:
            self._worker.start()
        except WorkerFailed as error:
            self._worker.close()
            raise RequestFailed(
                f"The engine of {repository.name} did not start.",
                why=str(error),
                next_step="fix the reported problem, or run `tllm doctor` to check the machine",
            ) from error

    def close(self) -> None:
        """Stop the worker."""
        self._worker.close()

    def stream(
        self, request: GenerateRequest, timeout_s: float | None, cancellation: Cancellation
    ) -> Generator[Piece, None, None]:
        """Yield the pieces of the response as they arrive.

        If `request.stream` is false, yield the pieces after the response is complete, one sequence
        after another. Raise the same exceptions as `client.ask.stream`.
        """
        fields = self._parse(request)
        updates: queue.SimpleQueue[SequenceUpdate | None] = queue.SimpleQueue()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            request_id = self._worker.submit(fields, updates.put)
        except WorkerFailed as error:
            raise _failed(self.info.name, str(error)) from error
        sequences: dict[int, _Sequence] = {}
        with cancellation.calling(lambda: updates.put(None)):
            try:
                while sum(each.is_ended for each in sequences.values()) < _count(fields):
                    update = self._wait(updates, deadline_s, timeout_s)
                    sequence = sequences.setdefault(update.sequence_index, _Sequence(self))
                    is_first = len(sequences) == 1 and not sequence.pieces
                    piece = sequence.add(update, fields["input_ids"] if is_first else ())
                    if request.stream:
                        yield piece
            finally:
                self._worker.cancel(request_id)
        if not request.stream:
            for index in sorted(sequences):
                yield from sequences[index].pieces

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special_tokens)

    def _parse(self, request: GenerateRequest) -> dict[str, Any]:
        """Convert the request to the fields of an engine request.

        Raise `BadInput` if the request selects a LoRA adapter by name or task id, or if a value
        does not fit its tensor. Raise `RequestFailed` if the engine does not support an input.
        """
        if request.lora_name or request.lora_task_id is not None:
            raise BadInput(
                "A LoRA adapter requires a server.",
                why="Triton's models load the adapters, but `tllm infer --no-server` runs only the "
                "engine worker",
                next_step="start a server with `tllm start` and omit --no-server",
            )
        arrays = {name: _as_array(value) for name, value in plan_inputs(request).items()}
        try:
            inputs = encode_text(self._preprocessor.encode, arrays.get) | {
                CORE_NAMES.get(name, name): array
                for name, array in arrays.items()
                if name not in TEXT_INPUTS
            }
            reject_tensors(inputs.get, sorted(inputs.keys() - SUPPORTED_INPUTS), self._kind)
            (row,) = parse_rows(inputs.get, exclude_input=True)
        except InvalidRequest as error:
            raise RequestFailed(
                f"The request to {self.info.name} failed.",
                why=str(error),
                next_step="change the options that caused the error",
            ) from error
        return row.fields

    def _wait(
        self,
        updates: queue.SimpleQueue[SequenceUpdate | None],
        deadline_s: float | None,
        timeout_s: float | None,
    ) -> SequenceUpdate:
        left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0)
        try:
            update = updates.get(timeout=left_s)
        except queue.Empty:
            raise error_mapping.timed_out(self.info.name, timeout_s) from None
        if update is None:
            raise error_mapping.cancelled()
        if update.error is not None:
            raise _failed(self.info.name, update.error)
        return update


class _Sequence:
    """The pieces of one sequence that the worker has generated so far."""

    def __init__(self, engine: LocalEngine) -> None:
        self.pieces: list[Piece] = []
        self.is_ended = False
        self._decoder = StreamDecoder(engine.decode)

    def add(self, update: SequenceUpdate, input_ids: tuple[int, ...]) -> Piece:
        text = self._decoder.push(update.token_ids)
        if update.finish_reason is not None:
            self.is_ended = True
            text += self._decoder.finish()
        perf = update.perf
        piece = Piece(
            text=text,
            at_s=time.monotonic(),
            sequence_index=update.sequence_index,
            num_input_tokens=len(input_ids) or None,
            num_output_tokens=len(update.token_ids),
            cum_log_prob=update.cum_log_prob,
            output_log_probs=update.log_probs,
            perf={name: getattr(perf, name) for name in perf.__slots__} if perf else {},
            token_ids=tuple(update.token_ids),
            input_ids=input_ids,
            finish_reason=update.finish_reason,
        )
        self.pieces.append(piece)
        return piece


def _count(fields: dict[str, Any]) -> int:
    return int(fields["num_return_sequences"])


def _as_array(value: Any) -> Array:
    """Return the tensor for a value in a request, with a batch dimension of 1."""
    if isinstance(value, tuple):
        return np.array([[each.encode() for each in value]], dtype=object)
    if isinstance(value, str):
        return np.array([[value.encode()]], dtype=object)
    return np.array([[value]])


def _check_layout(repository: OpenRepository) -> None:
    if repository.layout == "inflight" and find_kind(repository.kind).worker_config is not None:
        return
    raise BadInput(
        f"{repository.name} cannot run without a server.",
        why=f"{repository.kind} engines in the {repository.layout} layout run only inside Triton",
        next_step="start a server with `tllm start` and omit --no-server",
    )


def _read_config(repository: OpenRepository, model: str) -> dict[str, Any]:
    if model not in repository.texts:
        raise BadInput(
            f"{repository.path} does not contain the {model} model.",
            why=f"the folder does not contain {model}/config.pbtxt",
            next_step=f"import the model again with `tllm import -m {repository.name}`",
        )
    try:
        message = parse_config(repository.texts[model])
    except PbtxtError as error:
        raise unreadable(repository, model, error) from error
    config: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    # Restore the empty values that `MessageToDict` omits, because Triton also passes empty values
    # to a model.
    for value in config.get("parameters", {}).values():
        value.setdefault("string_value", "")
    return config


def _read_parameters(repository: OpenRepository, model: str) -> Parameters:
    return Parameters(
        {
            "model_config": json.dumps(_read_config(repository, model)),
            "model_name": model,
            "model_version": "1",
        }
    )


def read_info(repository: OpenRepository) -> ModelInfo:
    """Return the settings of the text model in an imported model's repository.

    Raise `BadInput` if the repository lacks this model, or `RepositoryError` if its `config.pbtxt`
    is invalid.
    """
    return parse_model_config(repository.name, _read_config(repository, repository.name))


def _load_tokenizer(info: ModelInfo, repository: OpenRepository) -> Tokenizer:
    what = f"The tokenizer of {info.name} cannot be loaded."
    assert info.tokenizer_dir is not None
    try:
        return load_tokenizer(Path(info.tokenizer_dir))
    except ImportError as error:
        # If an optional package is missing, Transformers raises an `ImportError` without a `name`.
        missing = f"the {error.name} package is not installed" if error.name else str(error)
        install = f"run `pip install {error.name}`" if error.name else "install the package"
        raise MissingPart(
            what,
            why=missing,
            next_step=f"{install}, or start a server with `tllm start` and omit --no-server",
        ) from error
    except BadTokenizer as error:
        import_again = command_to_import_again(repository.path, repository.name)
        raise RepositoryError(
            what,
            why=str(error),
            next_step=f"restore these files, or run `{import_again} --force`",
        ) from error


def _failed(model: str, why: str) -> TllmError:
    return RequestFailed(
        f"The request to {model} failed.",
        why=why,
        next_step="fix the reported problem, then send the request again",
    )
