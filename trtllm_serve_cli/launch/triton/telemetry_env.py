"""What a server tells of its requests: log lines, and spans for OpenTelemetry."""

from __future__ import annotations

from urllib.parse import urlsplit

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions


def telemetry_environ(options: LaunchOptions) -> dict[str, str]:
    """The variables that our models read (runtime/log.py, runtime/requests/request_record.py)."""
    environ: dict[str, str] = {}
    if options.log_format != "text":
        environ["TLLM_LOG_FORMAT"] = options.log_format
    if options.log_requests != "no":
        environ["TLLM_LOG_REQUESTS"] = options.log_requests
    if options.otlp_endpoint is not None:
        environ["TLLM_OTLP_TRACES"] = traces_url(options.otlp_endpoint)
    return environ


def trace_settings(options: LaunchOptions) -> tuple[str, ...]:
    """Triton's `--trace-config`, those that were given winning over ours. Raises `BadInput`."""
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


def traces_url(endpoint: str) -> str:
    """Where a collector takes spans; OTLP has a path for them, below what is given without one."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(
            f"{endpoint!r} is no address of a collector.",
            why="spans are sent over HTTP, not over gRPC (port 4317)",
            next_step="say it as --otlp-endpoint http://localhost:4318",
        )
    return endpoint.rstrip("/") + "/v1/traces" if parts.path in ("", "/") else endpoint
