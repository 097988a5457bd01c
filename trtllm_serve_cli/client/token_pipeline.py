"""Send requests through the `preprocessing`, `tensorrt_llm` and `postprocessing` models in turn.

Unlike the text models, `preprocessing` returns the token ids of the prompt, and `tensorrt_llm`
returns those of the response. NVIDIA's tools/inflight_batcher_llm/end_to_end_test.py (tags v0.8.0
to v0.19.0 of triton-inference-server/tensorrtllm_backend) sends requests in the same way.
"""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest, Piece
from trtllm_serve_cli.client.llmapi import name_inflight_inputs
from trtllm_serve_cli.client.model_info import CORE_MODEL, ModelInfo, fetch_model_config
from trtllm_serve_cli.client.transport import error_mapping
from trtllm_serve_cli.client.transport.cancellation import Cancellation
from trtllm_serve_cli.client.transport.over_grpc import stream_responses
from trtllm_serve_cli.client.transport.tensors import (
    INPUTS,
    Value,
    decode_raw,
    encode_raw,
    parse_pieces,
    plan_inputs,
)
from trtllm_serve_cli.errors import BadInput, RequestFailed
from trtllm_serve_cli.runtime.text.preprocessor import (
    PREPROCESSING_INPUTS,
    PREPROCESSING_OUTPUTS,
    TEXT_INPUTS,
)
from trtllm_serve_cli.runtime.triton.core_inputs import CORE_NAMES, EXCLUDE_INPUT

_ROLES = ("preprocessing", CORE_MODEL, "postprocessing")
# Maps `postprocessing` inputs to the `tensorrt_llm` outputs that are passed to them. NVIDIA's
# model requires these inputs in TensorRT-LLM 0.6 to 0.8 and accepts them up to 0.13.
_PASSED_ON = {"CUM_LOG_PROBS": "cum_log_probs", "OUTPUT_LOG_PROBS": "output_log_probs"}
# A `postprocessing` input that does not exist in the gpt layout or in TensorRT-LLM 0.5.
_LENGTHS = "SEQUENCE_LENGTH"

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An input or output in the raw format of Triton's gRPC API.

    `values` contains the elements of an output as a flat list. It is empty for an input.
    """

    datatype: str
    shape: tuple[int, ...]
    content: bytes
    values: Sequence[Any] = ()

    @classmethod
    def of(cls, name: str, value: Value) -> _Tensor:
        """Return the tensor for a value of the text models' input `name`."""
        shape, content = encode_raw(INPUTS[name], value)
        return cls(INPUTS[name], tuple(shape), content)

    @classmethod
    def of_integers(cls, shape: tuple[int, ...], values: Sequence[int]) -> _Tensor:
        return cls("INT32", shape, struct.pack(f"<{len(values)}i", *values))


Tensors = dict[str, _Tensor]


@dataclass(frozen=True, slots=True)
class TokenPipeline:
    """The `preprocessing`, `tensorrt_llm` and `postprocessing` models on a server.

    Together, the models generate text and token ids from a prompt.
    """

    endpoint: Endpoint
    preprocessing: ModelInfo
    core: ModelInfo
    postprocessing: ModelInfo

    def stream(
        self, request: GenerateRequest, timeout_s: float | None, cancellation: Cancellation
    ) -> Generator[Piece, None, None]:
        """Yield one piece per sequence, after the whole response has arrived.

        Raise the same exceptions as `client.ask.stream`.
        """
        calls = _Calls(self.endpoint, request.request_id, timeout_s, cancellation)
        values = plan_inputs(request)
        encoded = calls.send_once(self.preprocessing.name, _plan_text(values))
        prompt: Ids = tuple(self._output(encoded, "INPUT_ID").values)
        inputs = self._plan_core(encoded, values)
        input_ids = prompt
        for at_s, outputs in list(calls.send(self.core.name, inputs)):
            sequences = self._read_sequences(outputs, prompt)
            decoded = calls.send_once(self.postprocessing.name, self._plan_ids(sequences, outputs))
            texts = self._output(decoded, "OUTPUT").values
            if len(texts) != len(sequences):
                raise error_mapping.invalid_response(
                    self.endpoint.grpc,
                    f"{self.postprocessing.name} returned {len(texts)} texts for {len(sequences)} "
                    "sequences",
                )
            readable = {name: tensor.values for name, tensor in outputs.items()}
            counts = {
                "num_input_tokens": [len(prompt)],
                "num_output_tokens": [sum(map(len, sequences))],
            }
            pieces = self._parse(request, readable | counts | {"text_output": texts}, at_s)
            for piece, ids in zip(pieces, sequences, strict=True):
                yield dataclasses.replace(piece, token_ids=ids, input_ids=input_ids)
                input_ids = ()

    def _plan_core(self, encoded: Tensors, values: Mapping[str, Value]) -> Tensors:
        """Return the inputs of `tensorrt_llm`.

        The inputs are the outputs of `preprocessing` and the request options.
        """
        options = {
            CORE_NAMES.get(name, name): _Tensor.of(name, value)
            for name, value in values.items()
            if name not in TEXT_INPUTS and name != "stream"
        }
        core = self.core
        names = name_inflight_inputs(core.name, options, core.inputs, core.tensorrt_llm_version)
        return {
            name: encoded[output]
            for output, name in PREPROCESSING_OUTPUTS.items()
            if output in encoded and name in core.inputs
        } | {served_name: options[name] for name, served_name in names.items()}

    def _plan_ids(self, sequences: Sequence[Ids], outputs: Tensors) -> Tensors:
        """Return the inputs of `postprocessing` for the sequences in one response.

        The token ids are padded to the length of the longest sequence.
        """
        longest = max(1, *map(len, sequences))
        padded = [token for ids in sequences for token in (*ids, *(0,) * (longest - len(ids)))]
        lengths = [len(ids) for ids in sequences]
        return {
            "TOKENS_BATCH": _Tensor.of_integers((1, len(sequences), longest), padded),
            _LENGTHS: _Tensor.of_integers((1, len(sequences)), lengths),
        } | {
            name: outputs[output]
            for name, output in _PASSED_ON.items()
            if name in self.postprocessing.inputs and output in outputs
        }

    def _read_sequences(self, outputs: Tensors, prompt: Ids) -> list[Ids]:
        """Return the generated token ids of each sequence in a `tensorrt_llm` response.

        A sequence starts with the prompt if neither the model's configuration nor an input of the
        model can exclude the prompt.
        """
        output_ids = self._output(outputs, "output_ids")
        lengths = self._output(outputs, "sequence_length").values
        includes_prompt = EXCLUDE_INPUT not in self.core.inputs and not self.core.excludes_input
        start = len(prompt) if includes_prompt else 0
        ids, width = output_ids.values, output_ids.shape[-1]
        return [
            tuple(ids[index * width : index * width + length][start:])
            for index, length in enumerate(lengths)
        ]

    def _parse(
        self, request: GenerateRequest, outputs: Mapping[str, Sequence[Any]], at_s: float
    ) -> list[Piece]:
        try:
            return parse_pieces(request, outputs, at_s)
        except ValueError as error:
            raise error_mapping.invalid_response(
                self.endpoint.grpc, f"an output tensor is invalid: {error}"
            ) from error

    def _output(self, outputs: Tensors, name: str) -> _Tensor:
        if name not in outputs:
            raise error_mapping.invalid_response(
                self.endpoint.grpc, f"the response does not contain the {name} output"
            )
        return outputs[name]


@dataclass(frozen=True, slots=True)
class _Calls:
    """The server calls for one request. They share the request's time limit and cancellation."""

    endpoint: Endpoint
    request_id: str
    timeout_s: float | None
    cancellation: Cancellation
    started_s: float = dataclasses.field(default_factory=time.monotonic)

    def send(self, model: str, inputs: Tensors) -> Iterator[tuple[float, Tensors]]:
        """Yield the arrival time and the outputs of each response from `model`."""
        message = service_pb2.ModelInferRequest(model_name=model, id=self.request_id)
        for name, tensor in inputs.items():
            message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
            message.raw_input_contents.append(tensor.content)
        timeout_s = self._find_remaining_s(model)
        responses = stream_responses(self.endpoint, message, timeout_s, self.cancellation)
        with closing(responses):
            for at_s, response in responses:
                yield at_s, self._read_outputs(response)

    def send_once(self, model: str, inputs: Tensors) -> Tensors:
        """Send a request to `model` and return the outputs of its only response."""
        responses = [outputs for _, outputs in self.send(model, inputs)]
        if len(responses) != 1:
            raise error_mapping.invalid_response(
                self.endpoint.grpc, f"{model} sent {len(responses)} responses instead of one"
            )
        return responses[0]

    def _read_outputs(self, response: Any) -> Tensors:
        try:
            return {
                output.name: _Tensor(
                    output.datatype,
                    tuple(output.shape),
                    content,
                    decode_raw(output.datatype, content),
                )
                for output, content in zip(
                    response.outputs, response.raw_output_contents, strict=True
                )
            }
        except (struct.error, ValueError) as error:
            raise error_mapping.invalid_response(
                self.endpoint.grpc, f"an output tensor is invalid: {error}"
            ) from error

    def _find_remaining_s(self, model: str) -> float | None:
        if self.timeout_s is None:
            return None
        remaining_s = self.started_s + self.timeout_s - time.monotonic()
        if remaining_s <= 0:
            raise error_mapping.timed_out(model, self.timeout_s)
        return remaining_s


def open_token_pipeline(endpoint: Endpoint, text_model: ModelInfo) -> TokenPipeline:
    """Return the pipeline in the same repository as `text_model`.

    Raise `BadInput` if the configuration of one of the three models cannot be fetched, or if
    `postprocessing` does not have an input for sequence lengths. Raise `NoServer` if the server
    cannot be reached.
    """
    infos = []
    for role in _ROLES:
        name = text_model.name_of(role)
        try:
            infos.append(fetch_model_config(endpoint, name))
        except RequestFailed as error:
            raise BadInput(
                "The server cannot return token ids.",
                why=f"token ids require the models {', '.join(_ROLES)}, but the configuration of "
                f"{name} could not be fetched: {error.why}",
                next_step="import the model with `--layout inflight`, or omit --show-tokens",
            ) from error
    pipeline = TokenPipeline(endpoint, *infos)
    if _LENGTHS not in pipeline.postprocessing.inputs:
        raise BadInput(
            "The server cannot return token ids.",
            why=f"{pipeline.postprocessing.name} does not have a {_LENGTHS} input, so it cannot "
            "distinguish tokens from padding",
            next_step="import the model with `--layout inflight`, or omit --show-tokens",
        )
    return pipeline


def _plan_text(values: Mapping[str, Value]) -> Tensors:
    """Return the inputs of `preprocessing`."""
    return {
        served_name: _Tensor.of(name, values[name])
        for served_name, name in PREPROCESSING_INPUTS.items()
        if name in values
    }
