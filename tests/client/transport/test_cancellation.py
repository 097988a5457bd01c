from __future__ import annotations

from trtllm_serve_cli.client.transport.cancellation import Cancellation


def test_calls_hooks_of_active_blocks_only() -> None:
    cancellation, called = Cancellation(), list[str]()
    with cancellation.calling(lambda: called.append("a")):
        pass
    with cancellation.calling(lambda: called.append("b")):
        cancellation.set()
    assert (called, cancellation.is_set) == (["b"], True)


def test_calls_hook_immediately_if_already_set() -> None:
    cancellation, called = Cancellation(), list[str]()
    cancellation.set()
    with cancellation.calling(lambda: called.append("a")):
        assert called == ["a"]
