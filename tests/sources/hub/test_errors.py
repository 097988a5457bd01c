from __future__ import annotations

import errno
import socket
import ssl

import pytest

from trtllm_serve_cli.errors import SourceError
from trtllm_serve_cli.sources.hub.errors import find_wait_s, translate_hub_errors
from trtllm_serve_cli.sources.hub.hub_source import HubSource


def translate(error: Exception) -> SourceError:
    with (
        pytest.raises(SourceError) as caught,
        translate_hub_errors(HubSource("acme/tiny"), "https://hub"),
    ):
        raise error
    return caught.value


def test_translates_a_full_disk():
    assert str(translate(OSError(errno.ENOSPC, "No space left on device"))) == (
        "There is not enough disk space for the download.\n"
        "Why: writing hf:acme/tiny failed: No space left on device\n"
        "Next: free disk space and run the same command again, or set HF_HOME to a folder with "
        "more space"
    )


@pytest.mark.parametrize(
    "error",
    [OSError("Consistency check failed: file should be of size 9"), RuntimeError("xet: gone")],
    ids=["short", "xet"],
)
def test_translates_an_interrupted_download(error):
    translated = translate(error)
    assert translated.what == "The download of hf:acme/tiny was interrupted."
    assert translated.why == str(error)


def test_translates_a_timeout():
    assert translate(TimeoutError("timed out")).what == "https://hub cannot be reached."


def test_refused_connection_has_the_root_cause():
    error = OSError("outer")
    error.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    translated = translate(error)
    assert (translated.what, translated.why) == (
        "https://hub cannot be reached.",
        f"[Errno {errno.ECONNREFUSED}] Connection refused",
    )


class ProxyError(OSError):
    """An error with the same name as a proxy error in the HTTP libraries."""


@pytest.mark.parametrize(
    ("cause", "what", "next_step"),
    [
        (
            socket.gaierror(-2, "Name or service not known"),
            "The host name in https://hub cannot be resolved.",
            "HF_ENDPOINT",
        ),
        (
            ssl.SSLCertVerificationError("self-signed certificate"),
            "The certificate of https://hub is not trusted.",
            "SSL_CERT_FILE",
        ),
        (
            ProxyError("407 Proxy Authentication Required"),
            "The proxy rejected the request to https://hub.",
            "HTTPS_PROXY",
        ),
    ],
    ids=["name", "certificate", "proxy"],
)
def test_each_network_failure_has_its_message(cause, what, next_step):
    error = OSError("outer")
    error.__context__ = cause
    translated = translate(error)
    assert translated.what == what
    assert next_step in translated.next_step


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "30"}, 30.0),
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({}, None),
    ],
    ids=["Retry-After", "RateLimit", "date", "none"],
)
def test_finds_the_wait_in_the_headers(headers, wait_s):
    assert find_wait_s(headers) == wait_s
