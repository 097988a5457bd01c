"""Implement `tllm bench dataset` and `tllm bench end-to-end`, which use text prompts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.cli.bench.bench_job import Job
from trtllm_serve_cli.cli.bench.bench_options import SharedOptions
from trtllm_serve_cli.cli.bench.run_job import run_job
from trtllm_serve_cli.cli.shared.target import BenchTarget

_DATASET_FORMATS = (
    "Data set with prompts: a JSON file (with the fields input, instruction and output), a "
    "ShareGPT JSON file, a JSONL file (with prompts and lengths), or hf:NAME[:SPLIT] for a data "
    "set on the Hugging Face Hub."
)
_INPUT_WORDS = 100
OutputTokens = Annotated[
    int | None,
    typer.Option(
        "--output-tokens",
        min=1,
        help="Requested response length in tokens. Without --ignore-eos, responses may be "
        "shorter. Default: the output length of each data set entry, or 20 for random words.",
    ),
]
TokensPerWord = Annotated[
    float | None,
    typer.Option(
        "--op-tokens-per-word",
        min=0.01,
        help=(
            "Number of tokens per word for estimating the response length from the expected "
            "output in the data set. Default for `tllm bench dataset`: the tokenizer counts the "
            "tokens. Default for `tllm bench end-to-end`: 1.3."
        ),
    ),
]
MaxInputLen = Annotated[
    int | None,
    typer.Option(
        "--max-input-len",
        min=1,
        help=(
            "Maximum prompt length in tokens. Data set entries with longer prompts are skipped. "
            "`tllm bench end-to-end` estimates the length as 1.3 tokens per word. Default: no "
            "limit."
        ),
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos",
        help=(
            "Ignore the end-of-sequence token, so that each response has exactly the "
            "requested length."
        ),
    ),
]
TokenizerDir = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        "--tokenizer-dir",
        metavar="DIR",
        help="Tokenizer folder. Default for `tllm bench dataset`: the tokenizer of the server's "
        "`preprocessing` model, or none with -i openai or --simulate. Default for `tllm bench "
        "end-to-end`: none.",
    ),
]


class TextModel(str, Enum):
    """The text models that `--through` can select."""

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
    """Send the prompts in a data set as token ids to `tensorrt_llm`.

    Example:  tllm bench dataset --dataset mini_cnn_eval.json --concurrency 16 --stream
    """
    from trtllm_serve_cli.bench.generator.tokenizers import open_tokenizer
    from trtllm_serve_cli.bench.workloads.dataset import Lengths, read_entries, tokenize

    _check_output_lengths(output_tokens, op_tokens_per_word)
    entries = read_entries(source)
    job = Job("dataset", common)
    targets = None if common.simulate else job.find_targets()
    found = None
    if any(entry.prompt is not None for entry in entries):
        found = open_tokenizer(tokenizer or _find_folder(common, targets))
    elif tokenizer is not None:
        raise typer.BadParameter(
            "--tokenizer applies only to data sets with text, but all entries contain only the "
            "lengths of their prompts. Omit --tokenizer."
        )
    lengths = Lengths(output_tokens, op_tokens_per_word, max_input_len, ignore_eos)
    run_job(job, tokenize(source, entries, found, lengths), targets)


def _check_output_lengths(output_tokens: int | None, tokens_per_word: float | None) -> None:
    """Raise `BadParameter` if both options set the lengths of the responses."""
    if output_tokens is not None and tokens_per_word is not None:
        raise typer.BadParameter(
            "--output-tokens and --op-tokens-per-word cannot be used together, because both set "
            "the lengths of the responses. Omit one of them."
        )


def _find_folder(common: SharedOptions, targets: Sequence[BenchTarget] | None) -> Path:
    """Return the tokenizer folder that the targets' `preprocessing` models specify.

    Raise `BadParameter` if the requests are simulated or sent to an OpenAI API, because there are
    then no `preprocessing` models to query. See `find_tokenizer_folder` for the other errors.
    """
    interface = common.interface
    if targets is None or interface == "openai":
        source = "--simulate" if targets is None else "-i openai"
        raise typer.BadParameter(
            f"A data set with text requires a tokenizer, but {source} does not provide one. Pass "
            "--tokenizer DIR."
        )
    from trtllm_serve_cli.bench.generator.tokenizers import find_tokenizer_folder
    from trtllm_serve_cli.bench.model.served_model import Target

    return find_tokenizer_folder(Target(t.address, t.model, interface, tls=t.tls) for t in targets)


def end_to_end(
    common: SharedOptions,
    source: Annotated[
        str | None,
        typer.Option(
            "--dataset", metavar="FILE", help=f"{_DATASET_FORMATS} Default: random words."
        ),
    ] = None,
    through: Annotated[
        TextModel,
        typer.Option(
            help=(
                "Text model to send requests to. `own` selects the text model with the same name "
                "as the imported model. Ignored with -i openai, or if -m names a Triton model."
            )
        ),
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
    check_answers: Annotated[
        bool,
        typer.Option(
            "--check-answers/--no-check-answers",
            help=(
                "Before the measurement, send one prompt with greedy decoding to each text model "
                "(twice to the selected text model), and check that the responses are identical. "
                "The exit code is 3 if the responses differ. Ignored with -i openai."
            ),
        ),
    ] = True,
) -> None:
    """Send text prompts to `ensemble` or another text model.

    With -i http --stream, requests use Triton's generate_stream endpoint. With -i openai, each
    prompt is sent as the user message of a chat completion, or as a completion with --api
    completions. If the server does not report the number of tokens in a response, the client counts
    the tokens with the tokenizer from --tokenizer.

    Example:  tllm bench end-to-end -i http --stream --concurrency 8
    """
    from trtllm_serve_cli.bench.generator.tokenizers import open_tokenizer
    from trtllm_serve_cli.bench.workloads.dataset import Lengths, as_text, read_entries
    from trtllm_serve_cli.bench.workloads.spec import Workload
    from trtllm_serve_cli.bench.workloads.words import RandomWords

    _check_output_lengths(output_tokens, op_tokens_per_word)
    lengths = Lengths(output_tokens, op_tokens_per_word, max_input_len, ignore_eos)
    workload: Workload
    if source is None:
        for option, value in (
            ("--max-input-len", max_input_len),
            ("--op-tokens-per-word", op_tokens_per_word),
        ):
            if value is not None:
                raise typer.BadParameter(
                    f"{option} applies only to data sets. Add --dataset, or omit {option}."
                )
        words = input_words or _INPUT_WORDS
        workload = RandomWords(words, words / 20, output_tokens or 20, 0, ignore_eos)
    elif input_words is not None:
        raise typer.BadParameter(
            "--input-words applies only to random prompts. Omit --input-words or --dataset."
        )
    else:
        workload = as_text(source, read_entries(source), lengths)
    counting_tokenizer = None if tokenizer is None else open_tokenizer(tokenizer)
    job = Job("end-to-end", common, through.value, check_answers)
    run_job(job, workload, tokenizer=counting_tokenizer)
