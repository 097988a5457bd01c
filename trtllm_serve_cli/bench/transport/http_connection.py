"""Send requests to Triton's generate endpoints over HTTP."""

from __future__ import annotations

from urllib.parse import quote

from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport import codec
from trtllm_serve_cli.bench.transport.http_pool import HttpPool
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.client.address import split_address


class HttpConnection(HttpPool):
    """The HTTP connections to one model of a Triton server."""

    def __init__(self, model: ServedModel, options: codec.RequestOptions) -> None:
        super().__init__(*split_address(model.address), options.timeout_s)
        self._model = model
        self._options = options
        # Use `generate_stream` for decoupled models, because `generate` supports only one response.
        is_streamed = options.stream or model.is_decoupled
        endpoint = "generate_stream" if is_streamed else "generate"
        path = f"/v2/models/{quote(model.name, safe='')}/{endpoint}"
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {model.address}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        ).encode()
        self.decode = codec.decode_event

    def count_prompt_tokens(self, spec: RequestSpec) -> int:
        """Return the number of prompt tokens at the start of the response."""
        return codec.count_prompt_tokens(spec, self._model, self._options)

    def encode(self, spec: RequestSpec, request_id: str) -> bytes:
        body = codec.encode_body(spec, self._model, self._options)
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
