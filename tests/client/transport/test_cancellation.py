from __future__ import annotations

from trtllm_serve_cli.client.transport.cancellation import Cancellation


def test_hooks_are_called_while_their_block_lasts() -> None:
    cancellation, called = Cancellation(), list[str]()
    with cancellation.calling(lambda: called.append("a")):
        pass
    with cancellation.calling(lambda: called.append("b")):
        cancellation.set()
    assert (called, cancellation.is_set) == (["b"], True)


def test_hook_of_a_late_comer_is_called_at_once() -> None:
    cancellation, called = Cancellation(), list[str]()
    cancellation.set()
    with cancellation.calling(lambda: called.append("a")):
        assert called == ["a"]
