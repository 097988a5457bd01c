"""The options of `tllm infer`, by what they are about; the command lists them in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtllm_serve_cli.cli.infer.guided_decoding import GuideKind

_FILE_OR_TEXT = "FILE|TEXT"

PromptArgument = Annotated[
    str | None,
    typer.Argument(metavar="[PROMPT]", help="What to ask; `-` reads it from stdin."),
]

# Whom to ask.
InterfaceOption = Annotated[
    str, typer.Option("-i", "--interface", metavar="grpc|http", help="How to ask.")
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "-u",
        "--url",
        metavar="HOST:PORT",
        help="Another server: its gRPC address, or with -i http its HTTP address.",
    ),
]

# What to ask.
ChatOption = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Ask through the model's chat template, or with the bare prompt. "
        "Default: the template, if it has one.",
    ),
]
SystemOption = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="Instructions ahead of the prompt.")
]
BatchOption = Annotated[
    Path | None,
    typer.Option(
        "--batch",
        metavar="FILE",
        help="Ask every line: a prompt, or JSONL with prompt, max_tokens, … (`-`: stdin).",
    ),
]

# How long the answer is.
MaxTokensOption = Annotated[
    int, typer.Option("--max-tokens", metavar="N", min=1, help="Generate at most this many.")
]
MinTokensOption = Annotated[
    int | None,
    typer.Option("--min-tokens", metavar="N", min=0, help="Do not end before this many."),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="WORD", help="End at this word; may be repeated."),
]
StopAfterOption = Annotated[
    int | None,
    typer.Option(
        "--stop-after-ms",
        metavar="MS",
        min=1,
        help="End after this long, with the text that has come.",
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0.001, metavar="SECONDS", help="Give up, and cancel, after this long."
    ),
]

# How the tokens are chosen.
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature", metavar="T", min=0, help="Below 1 is more sober, above 1 wilder."
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        "--top-k", metavar="N", min=0, help="Choose among this many likeliest; 1 is greedy."
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p", metavar="P", min=0, max=1, help="Choose among the likeliest of this mass."
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", min=0, max=2**64 - 1, help="Same seed, same text."),
]
BadOption = Annotated[
    list[str] | None,
    typer.Option("--bad", metavar="WORD", help="Never say this; may be repeated."),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option("--repetition-penalty", metavar="X", help="Above 1 repeats itself less."),
]
PresencePenaltyOption = Annotated[
    float | None,
    typer.Option("--presence-penalty", metavar="X", help="Above 0 prefers tokens not used yet."),
]
FrequencyPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--frequency-penalty", metavar="X", help="Above 0 avoids tokens the more they were used."
    ),
]
BeamWidthOption = Annotated[
    int | None,
    typer.Option(
        "--beam-width", metavar="N", min=1, help="Search with this many beams; not streamed."
    ),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option("--length-penalty", metavar="X", help="Of beams: above 0 prefers longer ones."),
]
NumReturnSequencesOption = Annotated[
    int | None,
    typer.Option("--num-return-sequences", metavar="N", min=1, help="Give this many answers."),
]

# What form the answer must have: one of these.
JsonSchemaOption = Annotated[
    str | None,
    typer.Option("--json-schema", metavar=_FILE_OR_TEXT, help="Answer JSON of this schema."),
]
RegexOption = Annotated[
    str | None,
    typer.Option("--regex", metavar="TEXT", help="Answer what this expression matches."),
]
GrammarOption = Annotated[
    str | None,
    typer.Option("--grammar", metavar=_FILE_OR_TEXT, help="Answer by this EBNF grammar."),
]
StructuralTagOption = Annotated[
    str | None,
    typer.Option(
        "--structural-tag", metavar=_FILE_OR_TEXT, help="Answer by this structural tag (JSON)."
    ),
]
GuideOption = Annotated[
    GuideKind | None,
    typer.Option("--guide", metavar="json", help="Answer JSON, of whatever form."),
]

# Which LoRA adapter answers.
LoraOption = Annotated[
    str | None,
    typer.Option("--lora", metavar="NAME", help="Answer with this LoRA adapter of the server."),
]
LoraTaskIdOption = Annotated[
    int | None,
    typer.Option(
        "--lora-task-id",
        metavar="N",
        min=0,
        max=2**64 - 1,
        help="Answer with the adapter of this number.",
    ),
]
LoraDirOption = Annotated[
    Path | None,
    typer.Option(
        "--lora-dir",
        metavar="DIR",
        help="Send that adapter along, from this folder (gRPC only).",
    ),
]

# What is shown.
StreamOption = Annotated[
    bool, typer.Option("--stream/--no-stream", help="Print the text as it is generated.")
]
LogProbsOption = Annotated[
    bool, typer.Option("--logprobs", help="Show log probabilities, each token's too.")
]
RequestIdOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="What the server's log and traces call it. Default: a new one."
    ),
]
PerfOption = Annotated[
    bool, typer.Option("--perf", help="Show the server's times and KV cache blocks.")
]
