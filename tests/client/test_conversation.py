from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.triton.answers import TEMPLATE
from trtllm_serve_cli.client.conversation import Conversation, Turn, render_turns
from trtllm_serve_cli.client.model_info import ModelInfo

INFO = ModelInfo("demo", chat_template=TEMPLATE, max_seq_len=100)


def test_renders_turns_as_messages_in_order() -> None:
    prompt = render_turns(INFO, "Be brief.", [Turn("a", "b")], "c")
    assert prompt == "<system>Be brief.<user>a<assistant>b<user>c<assistant>"


def test_keeps_all_turns_until_token_counts_are_known() -> None:
    conversation = Conversation(INFO)
    conversation.keep(Turn("x" * 1000, "y"))
    conversation.make_prompt("z", max_tokens=50)
    assert len(conversation.turns) == 1


def test_keeps_all_turns_without_max_seq_len() -> None:
    conversation = Conversation(ModelInfo("demo", chat_template=TEMPLATE))
    conversation.keep(Turn("x" * 1000, "y"))
    conversation.measure("x", 100)
    conversation.make_prompt("z", max_tokens=50)
    assert len(conversation.turns) == 1


@given(
    turns=st.lists(st.builds(Turn, st.text(), st.text()), max_size=20),
    message=st.text(),
    max_tokens=st.integers(1, 200),
)
def test_prompt_fits_or_contains_only_the_message(
    turns: list[Turn], message: str, max_tokens: int
) -> None:
    conversation = Conversation(INFO)
    for turn in turns:
        conversation.keep(turn)
    conversation.measure("four", 1)
    prompt = conversation.make_prompt(message, max_tokens)
    left = conversation.turns
    assert left == tuple(turns[len(turns) - len(left) :])
    assert prompt == render_turns(INFO, None, left, message)
    assert not left or len(prompt.encode()) / 4 + max_tokens <= 100
