"""Derive the settings for request logs and OpenTelemetry spans from the launch options."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from trtllm_serve_cli.client.address import check_host
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions


def telemetry_environ(options: LaunchOptions) -> dict[str, str]:
    """Return the environment variables that configure the logs and spans of tllm's models.

    Raise `BadInput` if the collector's URL is not valid.
    """
    environ: dict[str, str] = {}
    if options.log_format != "text":
        environ["TLLM_LOG_FORMAT"] = options.log_format
    if options.log_requests != "no":
        environ["TLLM_LOG_REQUESTS"] = options.log_requests
    if options.otlp_endpoint is not None:
        environ["TLLM_OTLP_TRACES"] = traces_url(options.otlp_endpoint)
    return environ


def trace_settings(options: LaunchOptions) -> tuple[str, ...]:
    """Return the values for Triton's `--trace-config`. The user's values override the defaults.

    Raise `BadInput` if the collector's URL is not valid.
    """
    if options.otlp_endpoint is None:
        return options.trace_config
    defaults = {
        "mode": "opentelemetry",
        "opentelemetry,url": traces_url(options.otlp_endpoint),
        "level": "TIMESTAMPS",
        "rate": "1",
    }
    overridden = {each.partition("=")[0] for each in options.trace_config}
    kept = tuple(f"{name}={value}" for name, value in defaults.items() if name not in overridden)
    return (*kept, *options.trace_config)


def read_trace_rate(trace_config: Sequence[str]) -> int:
    """Return Triton's trace rate. With a rate of N, Triton traces one in N requests.

    Return 1 if the rate is not set, is not a whole number, or is less than 1.
    """
    values = [each.partition("=")[2] for each in trace_config if each.startswith("rate=")]
    return max(int(values[-1]), 1) if values and values[-1].isdecimal() else 1


def traces_url(endpoint: str) -> str:
    """Return the URL that receives spans. If `endpoint` has no path, append OTLP's default path.

    Raise `BadInput` if `endpoint` is not an HTTP URL.
    """
    refusal = BadInput(
        f"{endpoint!r} is not a valid collector URL.",
        why="tllm sends spans over HTTP and does not support gRPC (port 4317)",
        next_step="pass an HTTP URL, for example --otlp-endpoint http://localhost:4318",
    )
    try:
        parts = urlsplit(endpoint)
        check_host(parts.hostname or "")
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise refusal from error
    if not is_valid:
        raise refusal
    return endpoint.rstrip("/") + "/v1/traces" if parts.path in ("", "/") else endpoint
