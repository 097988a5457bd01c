"""The text models: `ensemble`, `tensorrt_llm_bls` and the model with the name that the user chose.

A text model encodes text to token ids (`text_encoder.py`), sends them to `tensorrt_llm`, and
decodes the generated tokens. It keeps a decoder per sequence, because streaming would otherwise
lose spaces and characters. Tokens come directly from the engine worker of `tensorrt_llm` if the
worker accepts connections, otherwise through business-logic scripting (BLS). The `ensemble` is a
text model, too, because Triton's ensemble scheduler keeps no such state and does not cancel a
running step.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..engine import PERF_OUTPUTS, InvalidRequest
from ..engines.kinds import reject_tensors
from ..log import write_traceback
from ..lora.adapter_request import NAME_PARAMETER, read_lora_name
from ..requests.cancel_watch import CancelWatch
from ..requests.core_adapter import CoreAdapter
from ..requests.in_flight import InFlight, send_error
from ..requests.request_record import RequestLedger, RequestRecord, ResponseRecorder
from ..requests.responses import merge_responses
from ..requests.text_response import RowTextResponseBuilder
from ..text.detokenize import StreamDecoder, decode_whole
from ..text.preprocessor import TEXT_INPUTS
from ..text.step_decoder import StepDecoder
from ..text.text_encoder import load_encoder
from ..text.tokenizer import load_tokenizer
from ..triton.core_inputs import CORE_NAMES
from ..triton.drain_check import reject_if_draining
from ..triton.parameters import Parameters
from ..triton.stub_workarounds import StreamKeeper, pick_requested, read_inputs
from ..triton.tensors import (
    INTERNAL_ID_PREFIX,
    SUPPORTED_INPUTS,
    Array,
    find_failure,
    parse_rows,
)
from ..worker.stop_forwarding import forward_stop, stop_socket_name
from ..worker.worker_link import SharedWorkerClient, WorkerFailed, shared_socket_name

# A request occupies a thread until it is submitted to the engine. A request that runs through
# business-logic scripting occupies a thread until it ends.
MAX_THREADS = 512

# Inputs of upstream's text models that this model does not support.
_UNSUPPORTED_INPUTS = (
    "decoder_text_input",
    "image_bytes_input",
    "image_input",
    "image_sizes_input",
    "image_url_input",
    "num_draft_tokens",
    "prompt_table_extra_id",
    "use_draft_logits",
    "video_bytes_input",
)
_FORWARDED_OUTPUTS = (
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
    "batch_index",
    "sequence_index",
    "num_input_tokens",
    "num_output_tokens",
    *PERF_OUTPUTS,
)
# Parts of Triton's error messages for a full queue and for a request that has waited too long.
_QUEUE_REJECTIONS = ("Exceeds maximum queue size", "timeout expired")
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class RequestError(Exception):
    """Raised if `tensorrt_llm` fails; the client receives the message."""


class TritonPythonModel:
    """The model that Triton's Python backend loads and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        self._name = parameters.model_name
        self._tokenizer = load_tokenizer(Path(parameters.text("tokenizer_dir")))
        self._skips_special_tokens = parameters.flag("skip_special_tokens", True)
        self._encode = load_encoder(parameters, self._tokenizer)
        self._engine = parameters.text("tensorrt_llm_model_name", "tensorrt_llm")
        self._engine_kind = parameters.text("engine_kind")
        self._core = CoreAdapter.of(parameters)
        # Forward all inputs except these. `tensorrt_llm` has the forwarded inputs under the same
        # names or the names in `CORE_NAMES`.
        not_forwarded = {*TEXT_INPUTS, *_UNSUPPORTED_INPUTS}
        self._forwarded_inputs = set(parameters.input_names) - not_forwarded
        # Request only outputs that `tensorrt_llm` declares, because Triton rejects requests for
        # other outputs. Old versions of `tensorrt_llm` do not declare the token counts.
        self._core_outputs = [
            "output_ids",
            "sequence_length",
            *self._core.list_outputs(
                name for name in _FORWARDED_OUTPUTS if name in parameters.output_names
            ),
        ]
        self._is_decoupled = parameters.is_decoupled
        self._ledger = RequestLedger(
            pb_utils, parameters.model_name, parameters.model_version, is_text_model=True
        )
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="text")
        self._watch = CancelWatch(parameters.number("cancellation_check_period_ms", 100) / 1000)
        self._streams = StreamKeeper()
        self._decoder = StepDecoder(self._decode_all)
        self._worker = SharedWorkerClient(
            shared_socket_name(self._engine), self._decoder.decode_ahead
        )
        self._in_flight = InFlight(self._worker, self._watch, is_decoupled=self._is_decoupled)

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            record = self._ledger.open_record(request)
            self._threads.submit(self._serve, request, record)

    def finalize(self) -> None:
        self._watch.close()
        self._worker.close()
        self._threads.shutdown(cancel_futures=True)
        self._in_flight.close()
        self._ledger.close()

    def _serve(self, request: Any, record: RequestRecord) -> None:
        sender = request.get_response_sender()
        try:
            self._generate(request, sender, record)
        except (InvalidRequest, RequestError, WorkerFailed) as error:
            record.reject(error)
            send_error(sender, str(error))
        except Exception as error:  # otherwise the client would wait forever
            write_traceback()
            record.reject(error)
            send_error(sender, f"the text model failed: {type(error).__name__}: {error}")

    def _generate(self, request: Any, sender: Any, record: RequestRecord) -> None:
        reject_if_draining(self._name)
        received = read_inputs(request)
        reject_tensors(received.get, _UNSUPPORTED_INPUTS, self._engine_kind)
        if np.any(received.get("stream", False)) and not self._is_decoupled:
            raise InvalidRequest(
                "stream requires a decoupled model, but decoupled_mode is false; omit stream, or "
                "set decoupled_mode=true"
            )
        if self._ledger.logs_prompts:
            record.prompt = _as_prompt(received.get("text_input"))
        # Restore the shape of inputs that this model's configuration reshapes to scalars.
        columns = {
            name: array.reshape(-1, 1) if array.ndim == 1 else array
            for name, array in received.items()
        }
        inputs = self._encode(columns.get) | {
            CORE_NAMES.get(name, name): columns[name]
            for name in self._forwarded_inputs & columns.keys()
        }
        generate = self._generate_on_worker if self._worker.was_open else self._generate_on_model
        generate(request, sender, inputs, record)

    def _generate_on_worker(
        self, request: Any, sender: Any, inputs: dict[str, Array], record: RequestRecord
    ) -> None:
        """Generate directly on the engine worker of `tensorrt_llm`.

        This is faster than a business-logic request, which would receive a response per token.
        """
        get = inputs.get
        reject_tensors(get, sorted(inputs.keys() - SUPPORTED_INPUTS), self._engine_kind)
        rows = parse_rows(get, exclude_input=self._worker.excludes_input)
        new_response_builder = partial(
            RowTextResponseBuilder,
            decoder=self._decoder,
            arrival_time_ns=record.arrival_ns,
            is_streaming=_is_streaming(inputs),
        )
        self._in_flight.start(request, sender, get, rows, new_response_builder, record)

    def _generate_on_model(
        self, request: Any, sender: Any, inputs: dict[str, Array], record: RequestRecord
    ) -> None:
        """Generate through the `tensorrt_llm` model, which may have any backend or queue policy."""
        core_request = self._core.adapt(inputs)
        recorder = ResponseRecorder(record, inputs)

        def stop() -> None:
            record.end("cancelled")
            self._stop(internal_id)

        adapter = read_lora_name(request.parameters())
        internal_id = f"{INTERNAL_ID_PREFIX}{uuid.uuid4().hex}"
        watched = self._watch.add(sender, stop)
        single_response = None
        try:
            tensors = [pb_utils.Tensor(name, array) for name, array in core_request.inputs.items()]
            responses = self._engine_outputs(tensors, internal_id, adapter)
            engine_outputs = map(recorder.record, map(core_request.complete, responses))
            for outputs in self._text_responses(engine_outputs, _is_streaming(inputs)):
                response = _response(request, outputs)
                if self._is_decoupled:
                    sender.send(response)
                else:
                    single_response = response
        finally:
            self._watch.remove(watched)
        record.complete()
        if self._is_decoupled:
            sender.send(flags=_FINAL)
        else:
            sender.send(single_response or pb_utils.InferenceResponse([]), flags=_FINAL)

    def _text_responses(
        self, engine_outputs: Iterable[dict[str, Array]], is_streaming: bool
    ) -> Iterator[list[Any]]:
        """Yield the tensors of each response.

        If `is_streaming` is true, a response contains a piece of the text, otherwise the whole
        text.
        """
        if is_streaming:
            decoders: dict[tuple[int, int], StreamDecoder] = {}
            for outputs in engine_outputs:
                yield self._as_pieces(outputs, decoders)
            for (row, sequence), decoder in decoders.items():
                if remaining_text := decoder.finish():
                    yield _remaining_text(remaining_text, row, sequence)
        elif self._is_decoupled:
            yield from map(self._as_texts, engine_outputs)
        elif all_outputs := list(engine_outputs):
            yield self._as_texts(merge_responses(all_outputs))

    def _engine_outputs(
        self, inputs: list[Any], internal_id: str, adapter: str | None
    ) -> Iterator[dict[str, Array]]:
        """Yield the outputs in each response of `tensorrt_llm`.

        Raise `InvalidRequest` if `tensorrt_llm` rejects the request, or `RequestError` if it fails.
        """
        parameters = {} if adapter is None else {NAME_PARAMETER: adapter}
        responses = self._exec(internal_id, inputs, self._core_outputs, parameters)
        try:
            for response in responses:
                if response.has_error():
                    why = response.error().message()
                    raise _failure(why, was_rejected=any(each in why for each in _QUEUE_REJECTIONS))
                tensors = {each.name(): each.as_numpy() for each in response.output_tensors()}
                if (failure := find_failure(tensors)) is not None:
                    raise _failure(failure[0], was_rejected=failure[1])
                # The last response of a stream may have no tensors.
                if tensors:
                    yield tensors
        finally:
            self._streams.keep(responses)

    def _stop(self, internal_id: str) -> None:
        """Stop the internal request of a client that has cancelled its request."""
        # If possible, forward the stop directly to the instance that runs the request, because a
        # stop request might wait in Triton's queue, behind requests that wait for this slot.
        if forward_stop(stop_socket_name(self._engine), internal_id):
            return
        inputs = [
            pb_utils.Tensor("stop", np.array([[True]])),
            # Up to version 0.14, TensorRT-LLM requires these inputs even in a stop request.
            pb_utils.Tensor("input_ids", np.zeros((1, 1), dtype=np.int32)),
            pb_utils.Tensor("input_lengths", np.zeros((1, 1), dtype=np.int32)),
            pb_utils.Tensor("request_output_len", np.zeros((1, 1), dtype=np.int32)),
        ]
        responses = self._exec(internal_id, inputs, ["output_ids"], {})
        # Ignore errors, because the stop request fails if the request has just ended.
        with contextlib.suppress(Exception):
            list(responses)
        self._streams.keep(responses)

    def _exec(
        self, request_id: str, inputs: list[Any], outputs: list[str], parameters: dict[str, str]
    ) -> Any:
        """Send a request to `tensorrt_llm`, and return its responses.

        `tensorrt_llm` is decoupled only if this model is decoupled. The call must match, because a
        decoupled call to a model that is not decoupled never returns (observed with Triton 2.51).
        """
        request = pb_utils.InferenceRequest(
            model_name=self._engine,
            request_id=request_id,
            requested_output_names=outputs,
            inputs=inputs,
            parameters=parameters,
        )
        return request.exec(decoupled=True) if self._is_decoupled else [request.exec()]

    def _as_pieces(
        self, outputs: dict[str, Array], decoders: dict[tuple[int, int], StreamDecoder]
    ) -> list[Any]:
        rows = _sequences(outputs)
        if len(rows[0]) > 1:  # beams are not streamed
            return self._as_texts(outputs)
        key = (int(outputs["batch_index"][0, 0]), int(outputs["sequence_index"][0, 0]))
        decoder = decoders.setdefault(key, StreamDecoder(self._decode))
        return _with_text([[decoder.push(rows[0][0])]], outputs)

    def _as_texts(self, outputs: dict[str, Array]) -> list[Any]:
        texts = [
            [decode_whole(self._decode, token_ids) for token_ids in row]
            for row in _sequences(outputs)
        ]
        return _with_text(texts, outputs)

    def _decode_all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self._tokenizer.decode_all(sequences, skip_special_tokens=self._skips_special_tokens)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special_tokens)


def _failure(why: str, *, was_rejected: bool) -> Exception:
    return InvalidRequest(why) if was_rejected else RequestError(why)


def _sequences(outputs: dict[str, Array]) -> list[list[list[int]]]:
    """Return the token ids of each row's sequences, without padding."""
    return [
        [ids[:length].tolist() for ids, length in zip(*row, strict=True)]
        for row in zip(outputs["output_ids"], outputs["sequence_length"], strict=True)
    ]


def _with_text(texts: list[list[str]], outputs: dict[str, Array]) -> list[Any]:
    tensors = [pb_utils.Tensor("text_output", _as_strings(texts))]
    return tensors + [
        pb_utils.Tensor(name, outputs[name]) for name in _FORWARDED_OUTPUTS if name in outputs
    ]


def _response(request: Any, tensors: list[Any]) -> Any:
    return pb_utils.InferenceResponse(pick_requested(request.requested_output_names(), tensors))


def _remaining_text(text: str, row: int, sequence: int) -> list[Any]:
    return [
        pb_utils.Tensor("text_output", _as_strings([[text]])),
        pb_utils.Tensor("batch_index", np.array([[row]], dtype=np.int32)),
        pb_utils.Tensor("sequence_index", np.array([[sequence]], dtype=np.int32)),
    ]


def _is_streaming(inputs: Mapping[str, Array]) -> bool:
    return bool(np.any(inputs.get("streaming", False)))


def _as_prompt(texts: Array | None) -> str:
    lines = [] if texts is None else texts.reshape(-1).tolist()
    return "\n".join(each.decode(errors="replace") for each in lines)


def _as_strings(rows: list[list[str]]) -> Any:
    """Return the texts of all rows in one dimension, as upstream's clients expect."""
    return np.array([text.encode() for texts in rows for text in texts], dtype=object)
