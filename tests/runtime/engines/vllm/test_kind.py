"""The environment in which vLLM is imported."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.runtime.engines.vllm.kind import set_batch_invariance


@pytest.mark.parametrize(
    ("config", "value"),
    [({"batch_invariant": True}, "1"), ({"batch_invariant": False}, "0"), ({}, "0")],
)
def test_setting_enables_batch_invariance(config: dict[str, bool], value: str) -> None:
    environ = {"VLLM_BATCH_INVARIANT": "0"}
    set_batch_invariance(environ, config)
    assert environ == {"VLLM_BATCH_INVARIANT": value}
