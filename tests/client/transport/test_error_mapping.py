from __future__ import annotations

import pytest

from trtllm_serve_cli.client.transport.error_mapping import (
    is_from_triton,
    is_rejection,
    refused,
)

FULL = "[request id: 7] Exceeds maximum queue size"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Request for unknown model: 'm' is not found", True),
        ("Server not ready", True),
        (FULL, True),
        ("failed to connect to all addresses; Connection refused", False),
    ],
)
def test_distinguishes_triton_from_an_unreachable_address(message: str, expected: bool) -> None:
    assert is_from_triton(message) is expected


def test_recognizes_a_full_queue() -> None:
    assert is_rejection(FULL)
    assert not is_rejection("Server not ready")


def test_log_is_suggested_only_if_the_server_gave_no_reason() -> None:
    assert "tllm logs" in refused("m", "").next_step
    assert "tllm logs" not in refused("m", "guided_decoding_guide cannot be used: …").next_step
    assert "select a model with -m" in refused("m", "Request for unknown model: 'm'").next_step
