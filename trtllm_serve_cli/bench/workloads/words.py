"""Draw prompts of random words for models with text input."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from trtllm_serve_cli.bench.workloads.lengths import draw_lengths
from trtllm_serve_cli.bench.workloads.spec import RequestSpec

# The words are short and common, because most tokenizers encode such words as one token each.
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "government", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
    "member", "law", "car", "city", "name", "team", "minute", "idea", "body", "back", "parent",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RandomWords:
    """A workload with prompts of random words.

    Prompt lengths (in words) and output lengths (in tokens) are normally distributed.
    """

    input_mean: float = 100
    input_stdev: float = 5
    output_mean: float = 20
    output_stdev: float = 2
    ignores_eos: bool = True

    num_available: ClassVar[None] = None

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        inputs = draw_lengths(self.input_mean, self.input_stdev, num_requests, rng)
        outputs = draw_lengths(self.output_mean, self.output_stdev, num_requests, rng)
        return [
            RequestSpec.of_text(
                " ".join(_WORDS[word] for word in rng.integers(0, len(_WORDS), num_words)),
                int(num_output_tokens),
                ignores_eos=self.ignores_eos,
            )
            for num_words, num_output_tokens in zip(inputs, outputs, strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        return asdict(self)
