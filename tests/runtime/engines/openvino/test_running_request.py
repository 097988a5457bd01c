"""Find the guided request that is most likely slowing down the engine."""

from __future__ import annotations

from trtllm_serve_cli.runtime.engine import GenerationRequest
from trtllm_serve_cli.runtime.engines.openvino.grammar_check import CheckedGuide
from trtllm_serve_cli.runtime.engines.openvino.running_request import (
    RunningRequest,
    find_slowest_guide,
)


def running(number: int, num_tokens: int, sampling_s: float | None) -> RunningRequest:
    guide = None if sampling_s is None else CheckedGuide(sampling_s=sampling_s)
    request = GenerationRequest(number, (1,), 9)
    return RunningRequest(request, None, 0, guide, num_tokens=num_tokens)


def test_slowest_guide_is_the_one_with_the_slowest_check() -> None:
    requests = [running(1, 900, None), running(2, 800, 0.02), running(3, 5, 0.6)]
    assert find_slowest_guide(requests) is requests[2]


def test_of_similar_guides_the_slowest_has_the_most_tokens() -> None:
    requests = [running(1, 50, 0.03), running(2, 800, 0.02), running(3, 5, 0.04)]
    assert find_slowest_guide(requests) is requests[1]


def test_without_guides_no_request_is_the_slowest() -> None:
    assert find_slowest_guide([running(1, 900, None)]) is None
