"""Build options that the repository's parameters require."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.engine_kinds.tensorrt.build_plan import complete_options
from trtllm_serve_cli.errors import BadInput


@pytest.mark.parametrize(
    ("options", "parameters", "expected"),
    [
        ({}, {}, None),
        ({}, {"enable_kv_cache_reuse": "false"}, None),
        ({}, {"enable_kv_cache_reuse": "true"}, True),
        ({}, {"enable_chunked_context": "true"}, True),
        ({"speculative_decoding_mode": "draft_tokens_external"}, {}, True),
        ({"use_paged_context_fmha": False}, {}, False),
    ],
)
def test_paged_context_is_built_if_a_feature_needs_it(
    options: dict[str, Any], parameters: dict[str, str], expected: bool | None
) -> None:
    completed = complete_options(EngineOptions(**options), parameters)
    assert completed.use_paged_context_fmha is expected


def test_engine_with_a_draft_model_accepts_draft_tokens() -> None:
    completed = complete_options(EngineOptions(), {"draft_engine_dir": "/draft"})
    assert completed == EngineOptions(
        speculative_decoding_mode="draft_tokens_external",
        max_draft_len=10,
        use_paged_context_fmha=True,
    )
    chosen = EngineOptions(speculative_decoding_mode="draft_tokens_external", max_draft_len=4)
    assert complete_options(chosen, {"draft_engine_dir": "/draft"}).max_draft_len == 4


def test_disabled_paged_context_contradicts_reuse() -> None:
    options = EngineOptions(use_paged_context_fmha=False)
    with pytest.raises(BadInput) as raised:
        complete_options(options, {"enable_kv_cache_reuse": "true"})
    assert (
        raised.value.what
        == "use_paged_context_fmha=false conflicts with enable_kv_cache_reuse=true."
    )


def test_beam_width_beyond_the_build_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        complete_options(EngineOptions(), {"max_beam_width": "4"})
    assert raised.value.next_step == "add --max-beam-width 4, or set max_beam_width=1"
    options = EngineOptions(max_beam_width=4)
    assert complete_options(options, {"max_beam_width": "4"}) == options
