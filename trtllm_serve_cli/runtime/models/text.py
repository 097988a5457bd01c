"""The text models: `ensemble`, `tensorrt_llm_bls` and the model named by the user.

A text model encodes text to token ids (`text_encoder.py`), sends them to `tensorrt_llm`, and
decodes the generated tokens. It keeps a decoder per sequence, because streaming would otherwise
lose spaces and characters. Tokens come directly from an engine worker of `tensorrt_llm` if the
workers accept connections, and otherwise through Business Logic Scripting (BLS). For requests with
`num_draft_tokens`, a text model also calls a draft model (`draft_decoding.py`). `ensemble` is not a
Triton ensemble but a text model, because Triton's ensemble scheduler does not keep decoders between
responses and does not cancel a running step.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..engine import PERF_OUTPUTS, InvalidRequest
from ..engines.kinds import is_supported, list_supported_inputs, reject_tensors
from ..log import write_traceback
from ..lora.adapter_request import read_lora_name
from ..pulse import start_beating
from ..requests.cancel_watch import CancelWatch
from ..requests.core_adapter import CoreAdapter
from ..requests.core_calls import CoreCaller, RequestError
from ..requests.draft_decoding import (
    DRAFT_INPUTS,
    DraftRequest,
    generate_with_drafts,
    requests_drafts,
)
from ..requests.in_flight import InFlight, send_error
from ..requests.request_record import RequestLedger, RequestRecord, ResponseRecorder
from ..requests.responses import merge_responses
from ..requests.stop_requests import StopHandler, StoppableRequest
from ..requests.text_response import RowTextResponseBuilder
from ..text.detokenize import StreamDecoder, TextStream, decode_whole
from ..text.preprocessor import TEXT_INPUTS
from ..text.step_decoder import StepDecoder
from ..text.text_encoder import load_encoder
from ..text.tokenizer import load_tokenizer
from ..triton.core_inputs import CORE_NAMES
from ..triton.drain_check import reject_if_draining
from ..triton.parameters import Parameters
from ..triton.stub_workarounds import pick_requested, read_inputs
from ..triton.tensors import INTERNAL_ID_PREFIX, Array, parse_rows
from ..worker.worker_link import WorkerFailed
from ..worker.worker_pool import WorkerPool

# The maximum number of threads that handle requests. A request that is sent directly to the engine
# worker occupies a thread only until it is submitted. A request through BLS occupies a thread until
# it ends.
MAX_THREADS = 512

# Inputs of NVIDIA's text models that this model does not support.
_UNSUPPORTED_INPUTS = (
    "decoder_text_input",
    "image_bytes_input",
    "image_input",
    "image_sizes_input",
    "image_url_input",
    "prompt_table_extra_id",
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
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """The model that Triton's Python backend loads and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        self._name = parameters.model_name
        self._tokenizer = load_tokenizer(Path(parameters.text("tokenizer_dir")))
        self._skips_special_tokens = parameters.flag("skip_special_tokens", True)
        self._encode = load_encoder(parameters, self._tokenizer)
        self._engine = parameters.text("tensorrt_llm_model_name", "tensorrt_llm")
        self._draft_model = parameters.text("tensorrt_llm_draft_model_name", "")
        self._accumulates = parameters.flag("accumulate_tokens", False)
        self._engine_kind = parameters.text("engine_kind")
        has_drafts = is_supported("num_draft_tokens", self._engine_kind)
        self._unsupported_inputs = _UNSUPPORTED_INPUTS + (() if has_drafts else DRAFT_INPUTS)
        self._supported_inputs = list_supported_inputs(self._engine_kind)
        self._core = CoreAdapter.of(parameters)
        # Do not forward these inputs. `tensorrt_llm` has all other inputs, under the same names or
        # the names in `CORE_NAMES`. A stop request is not forwarded either, because the request to
        # `tensorrt_llm` has another id than the client's request.
        not_forwarded = {*TEXT_INPUTS, *_UNSUPPORTED_INPUTS, *DRAFT_INPUTS, "stop"}
        self._forwarded_inputs = set(parameters.input_names) - not_forwarded
        self._is_decoupled = parameters.is_decoupled
        # Request only outputs that `tensorrt_llm` declares, because Triton rejects requests for
        # other outputs. Old versions of `tensorrt_llm` do not declare the token counts.
        outputs = self._core.list_outputs(
            name for name in _FORWARDED_OUTPUTS if name in parameters.output_names
        )
        self._caller = CoreCaller(
            self._core,
            ("output_ids", "sequence_length", *outputs),
            is_decoupled=self._is_decoupled,
        )
        self._ledger = RequestLedger(
            pb_utils,
            parameters.model_name,
            parameters.model_version,
            instance=parameters.instance,
            is_text_model=True,
        )
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="text")
        period_ms = parameters.number("cancellation_check_period_ms", 100, at_least=1)
        self._watch = CancelWatch(period_ms / 1000)
        self._decoder = StepDecoder(self._decode_all, self._tokenizer.unfinished_ids)
        self._workers = WorkerPool(self._engine, self._decoder.decode_ahead)
        self._in_flight = InFlight(self._workers, self._watch, is_decoupled=self._is_decoupled)
        self._stop_handler = StopHandler(
            parameters.model_name, self._in_flight, called_model=self._engine
        )
        start_beating("model", parameters.model_name)
        # Exclude the imported libraries' objects from garbage collection. Otherwise, each full
        # collection would visit these objects and delay the tokens of all streams.
        gc.collect()
        gc.freeze()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                inputs = read_inputs(request)
            except InvalidRequest as error:
                send_error(sender, str(error))
                continue
            if np.any(inputs.get("stop", False)):
                self._stop(request.request_id(), sender)
                continue
            record = self._ledger.open_record(request)
            running = StoppableRequest(request.request_id(), sender)
            self._in_flight.add(running)
            self._threads.submit(self._serve, request, inputs, sender, record, running)

    def finalize(self) -> None:
        self._watch.close()
        self._stop_handler.close()
        self._workers.close()
        self._threads.shutdown(cancel_futures=True)
        self._in_flight.close()
        self._ledger.close()

    def _stop(self, request_id: str, sender: Any) -> None:
        try:
            self._stop_handler.handle(request_id, sender)
        except InvalidRequest as error:
            send_error(sender, str(error))

    def _serve(
        self,
        request: Any,
        received: dict[str, Array],
        sender: Any,
        record: RequestRecord,
        running: StoppableRequest,
    ) -> None:
        try:
            if sender.is_cancelled():
                # The client cancelled the request while it was waiting for a thread, so skip
                # tokenization and generation.
                record.end("cancelled")
                send_error(sender, "the client cancelled the request")
                return
            self._generate(request, received, sender, record, running)
        except (InvalidRequest, RequestError, WorkerFailed) as error:
            record.reject(error)
            send_error(sender, str(error))
        except Exception as error:  # without a response, the client would wait forever
            write_traceback()
            record.reject(error)
            send_error(sender, f"the text model failed: {type(error).__name__}: {error}")
        finally:
            self._in_flight.remove(running)

    def _generate(
        self,
        request: Any,
        received: dict[str, Array],
        sender: Any,
        record: RequestRecord,
        running: StoppableRequest,
    ) -> None:
        reject_if_draining(self._name)
        reject_tensors(received.get, self._unsupported_inputs, self._engine_kind)
        if np.any(received.get("stream", False)) and not self._is_decoupled:
            raise InvalidRequest(
                "stream requires a decoupled model, but decoupled_mode is false; omit stream, or "
                "set decoupled_mode=true"
            )
        if self._ledger.logs_prompts:
            record.prompt = _as_prompt(received.get("text_input"))
        # Restore the shape [rows, 1] of inputs that this model's configuration reshapes to [rows].
        columns = {
            name: array.reshape(-1, 1) if array.ndim == 1 else array
            for name, array in received.items()
        }
        inputs = self._encode(columns.get) | {
            CORE_NAMES.get(name, name): columns[name]
            for name in self._forwarded_inputs & columns.keys()
        }
        if requests_drafts(columns.get):
            drafts = self._plan_drafts(inputs, columns)
            self._generate_on_model(request, sender, inputs, record, running, drafts)
        elif self._workers.was_open:
            self._workers.wait_for_reconnection()
            self._generate_on_worker(request, sender, inputs, record, running)
        else:
            self._generate_on_model(request, sender, inputs, record, running)

    def _plan_drafts(
        self, inputs: Mapping[str, Array], columns: Mapping[str, Array]
    ) -> DraftRequest:
        if not self._draft_model:
            raise InvalidRequest(
                "num_draft_tokens requires a draft model, but tensorrt_llm_draft_model_name is not "
                "set; omit num_draft_tokens, or import the model again with --draft NAME"
            )
        return DraftRequest.of(
            inputs,
            columns,
            min_tokens_name=self._core.min_tokens_name,
            excludes_input=self._core.excludes_input,
        )

    def _generate_on_worker(
        self,
        request: Any,
        sender: Any,
        inputs: dict[str, Array],
        record: RequestRecord,
        running: StoppableRequest,
    ) -> None:
        """Generate tokens directly on an engine worker of `tensorrt_llm`.

        A direct connection is faster than BLS, which receives a separate Triton response for each
        token.
        """
        get = inputs.get
        reject_tensors(get, sorted(inputs.keys() - self._supported_inputs), self._engine_kind)
        rows = parse_rows(get, exclude_input=self._workers.excludes_input)
        new_response_builder = partial(
            RowTextResponseBuilder,
            decoder=self._decoder,
            arrival_time_ns=record.arrival_ns,
            is_streaming=_is_streaming(inputs),
            accumulates=self._accumulates,
        )
        started = self._in_flight.start(request, sender, get, rows, new_response_builder, record)
        running.call_on_stop(started.stop)

    def _generate_on_model(
        self,
        request: Any,
        sender: Any,
        inputs: dict[str, Array],
        record: RequestRecord,
        running: StoppableRequest,
        drafts: DraftRequest | None = None,
    ) -> None:
        """Generate tokens by calling the `tensorrt_llm` model through BLS.

        The model may have any backend or queue policy. If `drafts` is set, also call the draft
        model.
        """
        internal_id = f"{INTERNAL_ID_PREFIX}{uuid.uuid4().hex}"

        def stop() -> None:
            record.end("cancelled")
            for model in (self._engine, self._draft_model) if drafts else (self._engine,):
                self._caller.stop(model, internal_id)

        if drafts is None:
            adapter = read_lora_name(request.parameters())
            responses = self._caller.call(self._engine, inputs, internal_id, adapter)
        else:
            responses = self._drafted_outputs(drafts, internal_id, running)
        recorder = ResponseRecorder(record, inputs)
        watched = self._watch.add(running, stop)
        single_response = None
        try:
            engine_outputs = map(recorder.record, responses)
            for outputs in self._text_responses(engine_outputs, _is_streaming(inputs)):
                response = _response(request, outputs)
                if self._is_decoupled:
                    # Triton 2.51 can crash if a response follows the client's cancellation.
                    if not running.has_client_cancelled:
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

    def _drafted_outputs(
        self, drafts: DraftRequest, internal_id: str, running: StoppableRequest
    ) -> Iterator[dict[str, Array]]:
        """Generate the response to a request with draft tokens and yield the response's outputs."""

        def ask(model: str, inputs: dict[str, Array]) -> dict[str, Array]:
            responses = list(self._caller.call(model, inputs, internal_id))
            return responses[-1] if responses else {}

        yield generate_with_drafts(
            drafts,
            partial(ask, self._draft_model),
            partial(ask, self._engine),
            lambda: running.must_end,
        )

    def _text_responses(
        self, engine_outputs: Iterable[dict[str, Array]], is_streaming: bool
    ) -> Iterator[list[Any]]:
        """Yield the tensors of each response.

        If `is_streaming` is true, each response contains the next piece of the text. Otherwise, a
        response contains the whole text. With `accumulate_tokens`, each piece also contains the
        previous pieces.
        """
        if is_streaming:
            streams: dict[tuple[int, int], TextStream] = {}
            for outputs in engine_outputs:
                yield self._as_pieces(outputs, streams)
            for (row, sequence), stream in streams.items():
                if remaining_text := stream.finish():
                    yield _remaining_text(remaining_text, row, sequence)
        elif self._is_decoupled:
            yield from map(self._as_texts, engine_outputs)
        elif all_outputs := list(engine_outputs):
            yield self._as_texts(merge_responses(all_outputs))

    def _as_pieces(
        self, outputs: dict[str, Array], streams: dict[tuple[int, int], TextStream]
    ) -> list[Any]:
        rows = _sequences(outputs)
        # Responses with several beams contain complete texts, so do not split them into pieces.
        if len(rows[0]) > 1:
            return self._as_texts(outputs)
        key = (int(outputs["batch_index"][0, 0]), int(outputs["sequence_index"][0, 0]))
        if key not in streams:
            decoder = StreamDecoder(self._decode)
            streams[key] = TextStream(decoder, accumulates=self._accumulates)
        return _with_text([[streams[key].push(rows[0][0])]], outputs)

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


def _sequences(outputs: dict[str, Array]) -> list[list[list[int]]]:
    """Return the token ids of each row's sequences as lists, without padding."""
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
    """Return the texts of all rows as a one-dimensional tensor.

    NVIDIA's clients expect this shape.
    """
    return np.array([text.encode() for texts in rows for text in texts], dtype=object)
