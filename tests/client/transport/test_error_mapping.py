from __future__ import annotations

import pytest

from trtllm_serve_cli.client.transport.error_mapping import is_from_triton, is_rejection

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
