from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.triton.answers import TEMPLATE
from trtllm_serve_cli.client.conversation import Conversation, Turn, render_turns
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.client.model_info import ModelInfo

INFO = ModelInfo("demo", chat_template=TEMPLATE, max_seq_len=100)
REQUEST = GenerateRequest("", max_tokens=50)
# The model of a server that applies the chat template.
RENDERED = ModelInfo("demo", max_seq_len=100, renders_chat=True)


def test_renders_turns_as_messages_in_order() -> None:
    prompt = render_turns(INFO, "Be brief.", [Turn("a", "b")], "c")
    assert prompt == "<system>Be brief.<user>a<assistant>b<user>c<assistant>"


def test_keeps_all_turns_until_token_counts_are_known() -> None:
    conversation = Conversation(INFO)
    conversation.keep(Turn("x" * 1000, "y"))
    conversation.make_request(REQUEST, "z")
    assert len(conversation.turns) == 1


def test_keeps_all_turns_without_max_seq_len() -> None:
    conversation = Conversation(ModelInfo("demo", chat_template=TEMPLATE))
    conversation.keep(Turn("x" * 1000, "y"))
    conversation.measure(GenerateRequest("x"), 100)
    conversation.make_request(REQUEST, "z")
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
    conversation.measure(GenerateRequest("four"), 1)
    prompt = conversation.make_request(GenerateRequest("", max_tokens), message).text_input
    left = conversation.turns
    assert left == tuple(turns[len(turns) - len(left) :])
    assert prompt == render_turns(INFO, None, left, message)
    assert not left or len(prompt.encode()) / 4 + max_tokens <= 100


def test_request_has_messages_if_the_server_renders_them() -> None:
    conversation = Conversation(RENDERED, "Be brief.")
    conversation.keep(Turn("a", "b"))
    assert conversation.make_request(REQUEST, "c") == GenerateRequest(
        "c",
        max_tokens=50,
        history=(
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ),
    )


def test_messages_are_dropped_until_they_fit() -> None:
    conversation = Conversation(RENDERED)
    conversation.measure(GenerateRequest("four"), 1)
    conversation.keep(Turn("x" * 1000, "y"))
    conversation.keep(Turn("a", "b"))
    assert len(conversation.make_request(REQUEST, "c").history) == 2
