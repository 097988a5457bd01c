"""The commands in a prompt's first token, and the tokens that the model generates."""

from __future__ import annotations

from typing import Any

FAIL_THE_REQUEST = 991
FAIL_THE_EXECUTOR = 992
NEVER_ANSWER = 993
BE_CANCELLED = 994

# (sequence, tokens, finish reason, is this the last response)
Output = tuple[int, list[int], "str | None", bool]


class RequestError(RuntimeError):
    pass


def responses_of(prompt: list[int], params: Any, *, streaming: bool) -> list[Any]:
    """Return the responses to a prompt, one for each step. None means that there is no response."""
    errors = {
        FAIL_THE_REQUEST: RequestError("the request does not fit"),
        FAIL_THE_EXECUTOR: RuntimeError("the executor is gone"),
    }
    if prompt[0] in errors:
        return [errors[prompt[0]]]
    if prompt[0] == NEVER_ANSWER:
        return [None]
    if prompt[0] == BE_CANCELLED:
        return [[(0, [], "cancelled", True)]]
    sequences = [_count(params, prompt[-1] + 100 * index) for index in range(params.best_of)]
    if not streaming:
        return [[(index, *each, True) for index, each in enumerate(sequences)]]
    length = max(len(tokens) for tokens, _ in sequences)
    return [_step(sequences, step, is_last=step == length - 1) for step in range(length)]


def _step(
    sequences: list[tuple[list[int], str]], step: int, *, is_last: bool
) -> list[Output]:  # fmt: skip
    return [
        (index, tokens[step : step + 1], reason if step == len(tokens) - 1 else None, is_last)
        for index, (tokens, reason) in enumerate(sequences)
        if step < len(tokens)
    ]


def _count(params: Any, last: int) -> tuple[list[int], str]:
    tokens: list[int] = []
    banned = params.banned()
    while len(tokens) < params.max_tokens:
        last += 1
        while any([*tokens, last][-len(word) :] == word for word in banned):
            last += 1
        tokens.append(last)
        if last == params.end_id or last in (params.stop_token_ids or ()):
            return tokens, "stop"
    return tokens, "length"
