"""Draw prompt and output lengths from histograms."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_serve_cli.bench.workloads.lengths import draw_prompts
from trtllm_serve_cli.bench.workloads.spec import RequestSpec, digest_of
from trtllm_serve_cli.errors import BadInput


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of lengths.

    `counts[i]` is the number of lengths in `buckets[i]`. A bucket is a pair (lowest length, highest
    length), and both bounds are inclusive.
    """

    buckets: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]

    def draw(self, num_lengths: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw random lengths, with probabilities proportional to the counts."""
        shares = np.array(self.counts) / sum(self.counts)
        chosen = rng.choice(len(self.buckets), num_lengths, p=shares)
        low, high = np.array(self.buckets).T
        lengths: NDArray[np.int64] = rng.integers(low[chosen], high[chosen], endpoint=True)
        return lengths


@dataclass(frozen=True, slots=True)
class TokenHistogram:
    """A workload with prompt lengths and output lengths from two histograms.

    `file` is the name of the file that contains the histograms, or `None` for built-in histograms.
    """

    key: str
    inputs: Histogram = field(repr=False)
    outputs: Histogram = field(repr=False)
    file: str | None = None

    @property
    def num_available(self) -> int:
        """The number of requests in tensorrtllm_backend's benchmark with these histograms."""
        return min(sum(self.inputs.counts), sum(self.outputs.counts))

    def draw(
        self,
        num_requests: int,
        vocab_size: int,
        rng: np.random.Generator,
        start: int = 0,
        step: int = 1,
    ) -> list[RequestSpec]:
        inputs = self.inputs.draw(num_requests, rng)
        outputs = self.outputs.draw(num_requests, rng)
        prompts = draw_prompts(inputs, vocab_size, rng)
        return [RequestSpec(ids, int(n)) for ids, n in zip(prompts, outputs, strict=True)]

    def describe(self) -> dict[str, Any]:
        return {
            "histogram_key": self.key,
            "histogram_file": self.file,
            "digest": digest_of((self.inputs, self.outputs)),
        }


# These histograms are from `tools/utils/utils.py` in tensorrtllm_backend@c2e65b8.
_UPSTREAM_HISTOGRAMS = {
    "example_ip": Histogram(
        ((151, 175), (176, 200), (201, 225), (226, 250), (251, 275)), (220, 225, 150, 150, 140)
    ),
    "example_op": Histogram(
        ((6, 10), (11, 15), (16, 20), (21, 25), (26, 30)), (76, 210, 174, 130, 152)
    ),
}
_FORM = '{"KEY_ip": {"buckets": [[1, 10], [11, 20]], "counts": [3, 7]}, "KEY_op": …}'


def find_histogram(key: str, file: Path | None = None) -> TokenHistogram:
    """Return a workload with the histograms `KEY_ip` and `KEY_op` from `file`.

    If `file` is `None`, use the built-in histograms, which are copied from tensorrtllm_backend.
    Raise `BadInput` if the file cannot be read or is invalid, or if a histogram is missing.
    """
    known = _UPSTREAM_HISTOGRAMS if file is None else _read(file)
    origin = "the built-in histograms" if file is None else str(file)
    try:
        name = None if file is None else file.name
        return TokenHistogram(key, known[f"{key}_ip"], known[f"{key}_op"], name)
    except KeyError as error:
        keys = sorted({name.rpartition("_")[0] for name in known})
        raise BadInput(
            f"The histogram key {key!r} was not found in {origin}.",
            why=f"the {error.args[0]} histogram is missing (available keys: "
            f"{', '.join(keys) or 'none'})",
            next_step="pass an available key with --histogram-key, or another file with "
            "--histogram-file",
        ) from error


def _read(file: Path) -> dict[str, Histogram]:
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
        return {name: _parse(name, value) for name, value in loaded.items()}
    except OSError as error:
        raise _refuse(file, error.strerror or str(error)) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _refuse(file, f"the file is not valid JSON: {error}") from error
    except (AttributeError, TypeError) as error:
        raise _refuse(file, "a value in the file has the wrong type") from error
    except (ValueError, OverflowError) as error:
        raise _refuse(file, str(error)) from error


def _parse(name: str, value: Any) -> Histogram:
    if not isinstance(value, dict) or not {"buckets", "counts"} <= value.keys():
        raise ValueError(f"{name} must contain both buckets and counts")
    buckets = tuple((int(low), int(high)) for low, high in value["buckets"])
    counts = tuple(int(count) for count in value["counts"])
    if len(buckets) != len(counts) or not sum(counts) or min(counts) < 0:
        raise ValueError(
            f"{name} must have one count for each bucket, no negative counts, and at least one "
            f"count above 0, but has {len(buckets)} buckets and the counts {list(counts)}"
        )
    if any(not 1 <= low <= high for low, high in buckets):
        raise ValueError(
            f"in each bucket of {name}, the lowest length must be at least 1 and must not exceed "
            f"the highest length, but the buckets are {value['buckets']}"
        )
    return Histogram(buckets, counts)


def _refuse(file: Path, why: str) -> BadInput:
    return BadInput(
        f"The histograms in {file} cannot be read.",
        why=why,
        next_step=f"pass a file in this format: {_FORM}",
    )
