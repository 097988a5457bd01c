"""Send requests of `hostile` as raw messages and return the replies."""

from __future__ import annotations

import random
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.e2e.hostile import WrongRequest, as_json

# Timeout of a request.
LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request: its first error, and the output contents of each response.

    For a stream, `outputs` contains one item: the first output of all responses together, because a
    busy server can send several tokens in one response.
    """

    error: str
    outputs: tuple[tuple[bytes, ...], ...] = ()


def as_message(wrong: WrongRequest) -> Any:
    """Return the request as a gRPC message."""
    message = service_pb2.ModelInferRequest(model_name=wrong.model, id=wrong.request_id)
    for name, sent in wrong.tensors.items():
        message.inputs.add(name=name, datatype=sent.datatype, shape=sent.shape)
        message.raw_input_contents.append(sent.content)
    for name, value in wrong.parameters:
        message.parameters[name].string_param = value
    return message


def send(stub: Any, message: Any) -> Reply:
    """Send the message over a new stream, and read the stream to its end."""
    responses, error = [], ""
    try:
        for response in stub.ModelStreamInfer(iter([message]), timeout=LIMIT_S):
            error = error or response.error_message
            if response.infer_response.outputs:
                responses.append(response.infer_response)
    except grpc.RpcError as failed:
        error = f"{failed.code().name}: {failed.details()}"
    if any(each.name in ("stream", "streaming") for each in message.inputs):
        return Reply(error, ((b"".join(map(_first_output, responses)),),))
    return Reply(error, tuple(tuple(each.raw_output_contents) for each in responses))


def _first_output(response: Any) -> bytes:
    """Return the content of the first output, without the length before a text."""
    content: bytes = response.raw_output_contents[0]
    return content[4:] if response.outputs[0].datatype == "BYTES" else content


def send_and_leave(stub: Any, message: Any, rng: random.Random) -> None:
    """Send the message and cancel it at a random time within 0.1 s."""
    call = stub.ModelStreamInfer(iter([message]), timeout=LIMIT_S)
    time.sleep(rng.random() * 0.1)
    call.cancel()


def post(http: str, wrong: WrongRequest) -> Reply | None:
    """Send the request to `/generate`. Return `None` if JSON cannot represent it."""
    body = as_json(wrong)
    if body is None:
        return None
    request = urllib.request.Request(
        f"http://{http}/v2/models/{wrong.model}/generate", data=body.encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return Reply("", ((answer.read(),),))
    except urllib.error.HTTPError as refused:
        return Reply(refused.read().decode())
