"""Read prompts from JSON or JSONL files, or from Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trtllm_serve_cli.bench.workloads.jsonl import Line, read_objects
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, digest_of
from trtllm_serve_cli.errors import BadInput, MissingPart

HUB = "hf:"
# Assumed number of tokens per word, as in tensorrtllm_backend's `benchmark_core_model.py`.
UPSTREAM_TOKENS_PER_WORD = 1.3
_INPUT_LENGTHS = ("input_length", "input_len", "input_tokens", "prompt_len", "num_input_tokens")
_OUTPUT_LENGTHS = (
    "output_length",
    "output_len",
    "output_tokens",
    "num_output_tokens",
    "max_tokens",
    "max_new_tokens",
)
_CONVERSATION_FIELDS = ("conversations", "conversation", "messages")
_USER_ROLES = ("human", "user")


class Tokenizer(Protocol):
    """A tokenizer that converts text to token ids."""

    end_id: int

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a data set.

    `where` is the entry's position, for error messages. If the entry contains only the length of
    the prompt, `prompt` is `None` and `num_input_tokens` is the length. Unless `Lengths` sets the
    output length, it is `num_output_tokens` or, if that field is `None`, the length of `answer`.
    """

    where: str
    prompt: str | None
    num_input_tokens: int | None = None
    answer: str | None = None
    num_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Settings that determine output lengths and the maximum prompt length.

    The output length is the first of these values that is set: `num_output_tokens`, the entry's
    `num_output_tokens`, and the length of the entry's answer. If `tokens_per_word` is set, the
    answer's length is its number of words times `tokens_per_word`. Otherwise, the tokenizer counts
    the answer's tokens. Without a tokenizer, 1.3 tokens per word are assumed.

    If `max_input_tokens` is set, entries with longer prompts are skipped. If `ignores_eos` is true,
    or if the prompt has random ids, the output has exactly the output length. Otherwise, the end
    token may end the output earlier.
    """

    num_output_tokens: int | None = None
    tokens_per_word: float | None = None
    max_input_tokens: int | None = None
    ignores_eos: bool = True


@dataclass(frozen=True, slots=True)
class Dataset:
    """A workload with the requests from a data set, in the order of its entries.

    After the last entry, the workload starts again with the first entry. An `int` in `requests` is
    the length of a prompt with random ids. `num_left_out` is the number of entries that were
    skipped because their prompts are empty or too long, or their conversations have no answer.
    `digest` is a hash of all entries, which shows whether two benchmarks used the same data.
    """

    name: str
    requests: tuple[RequestSpec | int, ...] = field(repr=False)
    num_output_tokens: tuple[int, ...] = field(repr=False)
    num_left_out: int = 0
    lengths: Lengths = Lengths()
    digest: str = ""

    @property
    def num_available(self) -> int:
        return len(self.requests)

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        drawn = []
        for number in range(start, start + num_requests * step, step):
            entry = number % len(self.requests)
            request = self.requests[entry]
            if isinstance(request, int):
                ids = rng.integers(0, vocab_size, request, dtype=np.int32)
                request = RequestSpec(ids, self.num_output_tokens[entry])
            drawn.append(request)
        return drawn

    def describe(self) -> dict[str, Any]:
        return {
            "dataset": self.name,
            "num_available": len(self.requests),
            "num_left_out": self.num_left_out,
            "digest": self.digest,
            **asdict(self.lengths),
        }


def read_entries(source: str) -> list[Entry]:
    """Read the entries of a file, or of a Hugging Face data set (`hf:NAME[:SPLIT]`).

    Raise `BadInput` if the entries cannot be read, if an entry is invalid, or if there are no
    entries. Raise `MissingPart` if `source` is a Hugging Face data set and the `datasets` package
    is not installed.
    """
    lines = _read_hub(source) if source.startswith(HUB) else read_objects(Path(source))
    if not lines:
        raise BadInput(
            f"The data set {source} is empty.",
            why="it does not contain any entries",
            next_step="pass a data set that contains prompts",
        )
    return [_parse(line) for line in lines]


def tokenize(
    name: str, entries: Iterable[Entry], tokenizer: Tokenizer | None, lengths: Lengths
) -> Dataset:
    """Convert data set entries to requests with token ids.

    Raise `BadInput` if an entry is text and `tokenizer` is `None`, or if an entry's output length
    is unknown. Also raise `BadInput` if every prompt is empty or too long.
    """

    def encode(entry: Entry) -> RequestSpec | int:
        if entry.prompt is None:
            return entry.num_input_tokens or 1
        if tokenizer is None:
            raise _no_tokenizer(entry)
        # Do not add special tokens to an empty prompt, so that `_collect` skips it.
        ids = np.array(tokenizer.encode(entry.prompt) if entry.prompt else [], np.int32)
        end_id = None if lengths.ignores_eos else tokenizer.end_id
        return RequestSpec(ids, _output_length(entry, tokenizer, lengths), end_id=end_id)

    def length(request: RequestSpec | int) -> int:
        return request if isinstance(request, int) else request.input_ids.size

    return _collect(name, entries, encode, length, lengths)


def as_text(name: str, entries: Iterable[Entry], lengths: Lengths) -> Dataset:
    """Convert data set entries to text requests, for a model with text input.

    Prompt lengths are estimated at 1.3 tokens per word. Raise `BadInput` if an entry lacks a
    prompt, if its output length is unknown, or if every prompt is empty or too long.
    """

    def to_spec(entry: Entry) -> RequestSpec:
        if entry.prompt is None:
            raise BadInput(
                f"The entry at {entry.where} does not contain a prompt.",
                why="the entry contains only the prompt's length, but the model requires text",
                next_step="run `tllm bench dataset`, which sends token ids",
            )
        return RequestSpec.of_text(
            entry.prompt, _output_length(entry, None, lengths), ignores_eos=lengths.ignores_eos
        )

    def length(request: RequestSpec | int) -> int:
        return 0 if isinstance(request, int) else _count_words(request.text or "")

    return _collect(name, entries, to_spec, length, lengths)


def _collect(
    name: str,
    entries: Iterable[Entry],
    make: Callable[[Entry], RequestSpec | int],
    length: Callable[[RequestSpec | int], int],
    lengths: Lengths,
) -> Dataset:
    requests: list[RequestSpec | int] = []
    outputs: list[int] = []
    num_left_out = 0
    contents = []
    for entry in entries:
        contents.append(replace(entry, where=""))
        request = make(entry)
        if not 0 < length(request) <= (lengths.max_input_tokens or 2**31):
            num_left_out += 1
            continue
        requests.append(request)
        outputs.append(
            request.num_output_tokens
            if isinstance(request, RequestSpec)
            else _output_length(entry, None, lengths)
        )
    if not requests:
        has_limit = lengths.max_input_tokens is not None
        raise BadInput(
            f"The data set {name} does not contain a usable prompt.",
            why="every prompt is empty or has no answer"
            f"{', or is longer than --max-input-len' if has_limit else ''}",
            next_step=f"{'increase --max-input-len or ' if has_limit else ''}pass another data set",
        )
    digest = digest_of(contents)
    return Dataset(name, tuple(requests), tuple(outputs), num_left_out, lengths, digest)


def _output_length(entry: Entry, tokenizer: Tokenizer | None, lengths: Lengths) -> int:
    known = lengths.num_output_tokens or entry.num_output_tokens
    if known is not None:
        return known
    if entry.answer is None:
        raise BadInput(
            f"The entry at {entry.where} does not specify an output length.",
            why=(
                "the entry contains neither an answer nor any of the fields "
                f"{', '.join(_OUTPUT_LENGTHS)}"
            ),
            next_step="pass an output length for all entries, for example --output-tokens 100",
        )
    if tokenizer is None or lengths.tokens_per_word is not None:
        return max(_count_words(entry.answer, lengths.tokens_per_word), 1)
    return max(len(tokenizer.encode(entry.answer, add_special_tokens=False)), 1)


def _count_words(text: str, tokens_per_word: float | None = None) -> int:
    """Estimate the number of tokens in a text, as tensorrtllm_backend's benchmark does.

    The estimate is `tokens_per_word` (default: 1.3) times the number of words, which are separated
    by single spaces. Return 0 if the text is empty.
    """
    num_words = len(text.split(" ")) if text else 0
    return int(num_words * (tokens_per_word or UPSTREAM_TOKENS_PER_WORD))


def _parse(line: Line) -> Entry:
    messages = next((line.fields[name] for name in _CONVERSATION_FIELDS if line.has(name)), None)
    if messages is not None:
        return _parse_conversation(line, messages)
    output_tokens = line.count(*_OUTPUT_LENGTHS) if line.has(*_OUTPUT_LENGTHS) else None
    if line.has("instruction"):
        prompt = f"{line.text('input')} {line.text('instruction')}"
        return Entry(line.where, prompt, None, line.text("output"), output_tokens)
    if not line.has("prompt", "text", "text_input") and line.has(*_INPUT_LENGTHS):
        return Entry(line.where, None, line.count(*_INPUT_LENGTHS), None, output_tokens)
    prompt = line.text("prompt", "text", "text_input")
    answered = line.has("output", "answer", "completion", "response")
    answer = line.text("output", "answer", "completion", "response") if answered else None
    return Entry(line.where, prompt, None, answer, output_tokens)


def _parse_conversation(line: Line, messages: Any) -> Entry:
    """Return an entry with the first user message as prompt and the next message as answer.

    If the conversation does not contain both messages, the prompt is empty, so that the entry is
    skipped. The published ShareGPT file contains such conversations. Raise `BadInput` if the
    conversation is not a list of objects, or if a message is not text.
    """
    if not isinstance(messages, Sequence) or not all(isinstance(each, dict) for each in messages):
        raise line.refuse("the conversation is not a list of objects")
    turns = [
        (str(each.get("from", each.get("role"))), each.get("value", each.get("content")))
        for each in messages
    ]
    first = next((index for index, (role, _) in enumerate(turns) if role in _USER_ROLES), None)
    if first is None or first + 1 == len(turns):
        return Entry(line.where, "", None, "")
    question, answer = turns[first][1], turns[first + 1][1]
    if not isinstance(question, str) or not isinstance(answer, str):
        raise line.refuse("the conversation contains a message without text")
    return Entry(line.where, question, None, answer)


def _read_hub(source: str) -> list[Line]:
    name, _, split = source.removeprefix(HUB).partition(":")
    try:
        import datasets
    except ImportError as error:
        raise MissingPart(
            "The `datasets` package is not installed.",
            why=f"the package is required to read {source} from the Hugging Face Hub",
            next_step="run `pip install datasets`",
        ) from error
    try:
        rows = datasets.load_dataset(name, split=split or "train")
    except (OSError, ValueError) as error:
        raise BadInput(
            f"The data set {source} could not be loaded.",
            why=(str(error).strip() or type(error).__name__).splitlines()[0],
            next_step="check the name and the split, for example hf:ORG/NAME:test",
        ) from error
    return [Line(f"{source}[{index}]", dict(row)) for index, row in enumerate(rows)]


def _no_tokenizer(entry: Entry) -> BadInput:
    return BadInput(
        "The data set cannot be converted to token ids without a tokenizer.",
        why=f"the prompt at {entry.where} is text, but the benchmark sends token ids",
        next_step="pass --tokenizer DIR, where DIR is a folder that contains the model's tokenizer",
    )
