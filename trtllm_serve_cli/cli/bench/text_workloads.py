"""Benchmarks with text prompts: `tllm bench dataset` and `tllm bench end-to-end`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.cli.bench.bench_job import Job
from trtllm_serve_cli.cli.bench.bench_options import SharedOptions
from trtllm_serve_cli.cli.bench.run_job import run_job

_DATASET_FORMATS = (
    "Data set: JSON with input, instruction and output; ShareGPT JSON; JSONL with prompt and "
    "lengths; or hf:NAME[:SPLIT]."
)
_INPUT_WORDS = 100
OutputTokens = Annotated[
    int | None,
    typer.Option("--output-tokens", min=1, help="Length of each response. Default: the entry's."),
]
TokensPerWord = Annotated[
    float | None,
    typer.Option(
        "--op-tokens-per-word",
        min=0.01,
        help="Tokens per word of an entry's output, to compute its length as upstream does "
        "(upstream uses 1.3).",
    ),
]
MaxInputLen = Annotated[
    int | None,
    typer.Option("--max-input-len", min=1, help="Skip prompts longer than this number of tokens."),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos", help="Generate responses of exactly this length, past the end token."
    ),
]
TokenizerDir = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        "--tokenizer-dir",
        metavar="DIR",
        help="Folder of the model's tokenizer. Default: the tokenizer of the server's repository.",
    ),
]


class TextModel(str, Enum):
    """Text models that `--through` selects."""

    OWN = "own"
    ENSEMBLE = "ensemble"
    BLS = "tensorrt_llm_bls"


def dataset(
    common: SharedOptions,
    source: Annotated[str, typer.Option("--dataset", metavar="FILE", help=_DATASET_FORMATS)],
    output_tokens: OutputTokens = None,
    op_tokens_per_word: TokensPerWord = None,
    max_input_len: MaxInputLen = None,
    ignore_eos: IgnoreEos = False,
    tokenizer: TokenizerDir = None,
) -> None:
    """Send the prompts of a data set as token ids to `tensorrt_llm`.

    Example:  tllm bench dataset --dataset mini_cnn_eval.json --concurrency 16 --stream
    """
    from trtllm_serve_cli.bench.generator.tokenizers import find_tokenizer_folder, open_tokenizer
    from trtllm_serve_cli.bench.model.served_model import Target
    from trtllm_serve_cli.bench.workloads.dataset import Lengths, read_entries, tokenize

    entries = read_entries(source)
    job = Job("dataset", common)
    targets = None if common.simulate else job.find_targets()
    found = None
    if any(entry.prompt is not None for entry in entries):
        if tokenizer is None and targets is None:
            raise typer.BadParameter("--simulate requires --tokenizer, since there is no server.")
        served = [Target(t.address, t.model, common.interface) for t in targets or ()]
        found = open_tokenizer(tokenizer or find_tokenizer_folder(served))
    lengths = Lengths(output_tokens, op_tokens_per_word, max_input_len, ignore_eos)
    run_job(job, tokenize(source, entries, found, lengths), targets)


def end_to_end(
    common: SharedOptions,
    source: Annotated[
        str | None,
        typer.Option(
            "--dataset", metavar="FILE", help=f"{_DATASET_FORMATS} Default: random words."
        ),
    ] = None,
    through: Annotated[
        TextModel, typer.Option(help="Text model to send requests to.")
    ] = TextModel.ENSEMBLE,
    input_words: Annotated[
        int | None,
        typer.Option(min=1, help="Mean number of words in a random prompt. Default: 100."),
    ] = None,
    output_tokens: OutputTokens = None,
    op_tokens_per_word: TokensPerWord = None,
    max_input_len: MaxInputLen = None,
    ignore_eos: IgnoreEos = False,
    tokenizer: TokenizerDir = None,
) -> None:
    """Send text prompts to `ensemble`, `tensorrt_llm_bls` or the model's own name.

    With -i http --stream, requests use generate_stream. --tokenizer counts the tokens of responses
    if the server does not return the count.

    Example:  tllm bench end-to-end -i http --stream --concurrency 8
    """
    from trtllm_serve_cli.bench.generator.tokenizers import open_tokenizer
    from trtllm_serve_cli.bench.workloads.dataset import Lengths, as_text, read_entries
    from trtllm_serve_cli.bench.workloads.spec import Workload
    from trtllm_serve_cli.bench.workloads.words import RandomWords

    lengths = Lengths(output_tokens, op_tokens_per_word, max_input_len, ignore_eos)
    workload: Workload
    if source is None:
        for option, value in (
            ("--max-input-len", max_input_len),
            ("--op-tokens-per-word", op_tokens_per_word),
        ):
            if value is not None:
                raise typer.BadParameter(f"{option} needs --dataset.")
        words = input_words or _INPUT_WORDS
        workload = RandomWords(words, words / 20, output_tokens or 20, 0, ignore_eos)
    elif input_words is not None:
        raise typer.BadParameter(
            "--input-words applies to random prompts only: leave it out with --dataset."
        )
    else:
        workload = as_text(source, read_entries(source), lengths)
    counting_tokenizer = None if tokenizer is None else open_tokenizer(tokenizer)
    run_job(Job("end-to-end", common, through.value), workload, tokenizer=counting_tokenizer)
