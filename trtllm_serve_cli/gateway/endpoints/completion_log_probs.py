"""Convert the log probabilities of a completion to OpenAI's format."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

from trtllm_serve_cli.runtime.engine import PromptFacts, TokenLogProb
from trtllm_serve_cli.runtime.text.tokenizer import Tokenizer

Alternatives = Sequence[Sequence[TokenLogProb]]


def describe_log_probs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    log_probs: Sequence[float | None],
    alternatives: Alternatives,
    start: int,
) -> dict[str, Any]:
    """Return the log probability and the text offset of each token.

    `alternatives` lists the most likely tokens at each position with their log probabilities, or is
    empty. `start` is the number of characters before the first token.
    """
    texts = _decode_each(tokenizer, token_ids)
    return {
        "tokens": texts,
        "token_logprobs": list(log_probs),
        "top_logprobs": _describe_alternatives(tokenizer, texts, log_probs, alternatives)
        if alternatives
        else None,
        "text_offset": list(accumulate(map(len, texts), initial=start))[: len(texts)],
    }


def describe_prompt(
    tokenizer: Tokenizer, token_ids: Sequence[int], text: str, facts: PromptFacts
) -> dict[str, Any]:
    """Return prompt log probabilities in the format of `describe_log_probs`.

    The first token has no log probability. `text` is the prompt.
    """
    alternatives = ((), *facts.top_log_probs) if facts.top_log_probs else ()
    described = describe_log_probs(tokenizer, token_ids, [None, *facts.log_probs], alternatives, 0)
    # The first token may be a special token that does not appear in `text`. Do not compare the
    # lengths of all tokens with `text`, because the parts of a character have other lengths.
    first, *_ = described["tokens"]
    is_special = not tokenizer.decode(token_ids[:1])
    excess = len(first) if is_special and not text.startswith(first) else 0
    described["text_offset"] = [max(0, each - excess) for each in described["text_offset"]]
    return described


def join(first: dict[str, Any], second: dict[str, Any] | None) -> dict[str, Any]:
    """Join the log probabilities of two consecutive texts. If `second` is None, return `first`."""
    if second is None:
        return first
    return {
        key: None if first[key] is None and second[key] is None else _join(first, second, key)
        for key in first
    }


def _join(first: dict[str, Any], second: dict[str, Any], key: str) -> list[Any]:
    # The alternatives of one text may be None: a one-token prompt has no alternatives.
    values = (each[key] or [None] * len(each["tokens"]) for each in (first, second))
    return list(chain.from_iterable(values))


def _describe_alternatives(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    log_probs: Sequence[float | None],
    alternatives: Alternatives,
) -> list[dict[str, float] | None]:
    """Return one entry per token: a dictionary, or None if the token has no log probability.

    The dictionary maps the text of each alternative, and of the token itself, to its log
    probability.
    """
    decoded = iter(_decode_each(tokenizer, [token for row in alternatives for token, _ in row]))
    described: list[dict[str, float] | None] = []
    for text, log_prob, row in zip(texts, log_probs, alternatives, strict=True):
        entry: dict[str, float] = {}
        for _, value in row:
            # Several tokens may have the same text; keep the most likely one, which comes first.
            entry.setdefault(next(decoded), value)
        if log_prob is not None:
            entry.setdefault(text, log_prob)
        described.append(None if log_prob is None else entry)
    return described


def _decode_each(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    return list(tokenizer.decode_all([[each] for each in token_ids], skip_special_tokens=False))
