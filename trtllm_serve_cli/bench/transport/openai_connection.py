"""Send requests to an OpenAI-compatible server."""

from __future__ import annotations

import ssl

from trtllm_serve_cli.bench.model.served_model import ServedModel
from trtllm_serve_cli.bench.transport import openai_codec
from trtllm_serve_cli.bench.transport.codec import RequestOptions
from trtllm_serve_cli.bench.transport.http_pool import HttpPool
from trtllm_serve_cli.bench.workloads.spec import RequestSpec
from trtllm_serve_cli.client.transport.openai.endpoint import OpenAIEndpoint, parse_base_url
from trtllm_serve_cli.client.transport.openai.response_pieces import DONE


class OpenAIConnection(HttpPool):
    """The HTTP connections to one model of an OpenAI-compatible server."""

    def __init__(self, model: ServedModel, options: RequestOptions) -> None:
        url = parse_base_url(model.address)
        super().__init__(
            url.host,
            url.port,
            options.timeout_s,
            tls=ssl.create_default_context() if url.is_tls else None,
            end_mark=DONE.encode() if options.stream else b"",
        )
        self._model = model
        self._options = options
        headers = OpenAIEndpoint(url, model.api_key).headers
        lines = (
            f"POST {url.path_of(openai_codec.find_api(model))} HTTP/1.1",
            f"Host: {url.authority}",
            *(f"{name}: {value}" for name, value in headers.items()),
        )
        self._head = "\r\n".join(lines).encode()
        self.decode = openai_codec.decode_part

    def count_prompt_tokens(self, spec: RequestSpec) -> int:
        """Return 0, because responses do not start with the prompt."""
        return 0

    def encode(self, spec: RequestSpec, request_id: str) -> bytes:
        body = openai_codec.encode_body(spec, self._model, self._options)
        return b"%b\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._head,
            request_id.encode(),
            len(body),
            body,
        )
