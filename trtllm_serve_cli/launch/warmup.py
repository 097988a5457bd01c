"""Send warm-up requests to a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from trtllm_serve_cli.client.ask import Responder, generate
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo, fetch_model_config
from trtllm_serve_cli.client.transport.openai.endpoint import OpenAIEndpoint, parse_base_url
from trtllm_serve_cli.client.transport.openai.exchange import OpenAIModel
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.launch.planning.launch_plan import LaunchPlan
from trtllm_serve_cli.launch.planning.warmup_plan import WarmupRequest

_WORDS = ("Describe", "a", "city", "and", "the", "people", "who", "live", "in", "it")


def warm_up(plan: LaunchPlan, timeout_s: float) -> Iterator[str]:
    """Send the plan's warm-up requests in order and yield a message for each failed request.

    Send text requests to the server and each of its replicas. Send chat requests only once, because
    the gateway distributes them across replicas. `timeout_s` is the timeout for each request.
    """
    for rank, endpoint in enumerate((plan.endpoint, *plan.replicas)):
        for each in plan.warmup:
            if each.is_chat and rank > 0:
                continue
            try:
                _send(plan, endpoint, each, timeout_s)
            except TllmError as error:
                why = f" ({error.why})" if error.why else ""
                yield f"warm-up request {each.name!r}: {error.what.removesuffix('.')}{why}"


def _send(plan: LaunchPlan, endpoint: Endpoint, each: WarmupRequest, timeout_s: float) -> None:
    target: Endpoint | Responder = endpoint
    info: ModelInfo | None = None
    if each.is_chat and plan.gateway is not None:
        url = parse_base_url(plan.gateway.url)
        target = OpenAIModel(OpenAIEndpoint(url, plan.gateway.supervisor_token or None), each.model)
    else:
        info = fetch_model_config(endpoint, each.model, "http", timeout_s)
    request = GenerateRequest(
        " ".join(itertools.islice(itertools.cycle(_WORDS), each.num_words)),
        each.max_tokens,
        stream=info is None or info.is_decoupled,
        guided_decoding_guide_type="json_schema" if each.json_schema else None,
        guided_decoding_guide=each.json_schema or None,
    )
    with ThreadPoolExecutor(each.num_streams) as pool:
        futures = [
            pool.submit(generate, target, each.model, request, "http", timeout_s, info=info)
            for _ in range(each.num_streams)
        ]
    for future in futures:
        future.result()
