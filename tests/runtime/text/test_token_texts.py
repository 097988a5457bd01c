from __future__ import annotations

from collections.abc import Sequence

from trtllm_serve_cli.runtime.text.token_texts import TokenTexts

_TEXTS = ("a", "", "\ufffd", "b")


def test_only_finished_tokens_have_a_text() -> None:
    calls: list[list[list[int]]] = []

    def decode_all(sequences: Sequence[Sequence[int]]) -> list[str]:
        calls.append([list(each) for each in sequences])
        return ["".join(_TEXTS[each] for each in ids) for ids in sequences]

    texts = TokenTexts(decode_all, unfinished_ids={3})
    assert texts.find(0) is None
    texts.add({0, 1, 2})
    texts.add({1, 2})
    texts.add({3})
    assert [texts.find(each) for each in range(4)] == ["a", "", None, None]
    assert calls == [[[0], [1], [2]], [[3]]]
