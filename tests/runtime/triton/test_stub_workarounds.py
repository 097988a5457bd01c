"""The stub receives only requested tensors, and releases responses first."""

from __future__ import annotations

import weakref

from tests.fakes.triton_utils import Tensor
from trtllm_serve_cli.runtime.triton.stub_workarounds import StreamKeeper, pick_requested


class Responses:
    """A stand-in for the responses of a BLS request."""


def test_picks_only_requested_tensors() -> None:
    tensors = [Tensor(name, None) for name in ("text_output", "batch_index", "sequence_index")]
    picked = pick_requested(["sequence_index", "text_output"], tensors)
    assert [tensor.name() for tensor in picked] == ["text_output", "sequence_index"]


def test_keeps_responses_until_their_time_has_passed() -> None:
    now_s = [0.0]
    keeper = StreamKeeper(kept_s=5.0, clock=lambda: now_s[0])
    first, second = Responses(), Responses()
    held = [weakref.ref(first), weakref.ref(second)]
    lives = []
    keeper.keep(first)
    now_s[0] = 4.0
    keeper.keep(second)
    del first, second
    for now_s[0] in (4.9, 5.0, 9.0):
        keeper.keep(None)
        lives.append([each() is not None for each in held])
    assert lives == [[True, True], [False, True], [False, False]]
