"""Declare `tllm bench` and its commands for workloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtllm_serve_cli.cli.bench import result_commands, text_workloads
from trtllm_serve_cli.cli.bench.bench_job import Job
from trtllm_serve_cli.cli.bench.bench_options import (
    CommonOptions,
    SearchOptions,
    SharedOptions,
    SweepOptions,
    with_options,
)
from trtllm_serve_cli.cli.bench.calibrate_command import calibrate
from trtllm_serve_cli.cli.bench.run_job import run_job
from trtllm_serve_cli.cli.command_groups import FullSummaryGroup
from trtllm_serve_cli.errors import BadInput

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist

_MAX_TOKENS = 1_000_000
_LENGTHS = "Lengths, in tokens"

bench_app = typer.Typer(
    cls=FullSummaryGroup,
    no_args_is_help=True,
    help="Benchmark running servers.\n\n"
    "Example:  tllm bench token-norm-dist --request-rate 5 --stream",
)
sweep_app = typer.Typer(
    cls=FullSummaryGroup,
    no_args_is_help=True,
    help="Measure a workload at several loads or on several models.\n\n"
    "A sweep with --repeat alternates between its points. With --output, each point has a separate "
    "folder, and a report plots latency against throughput.\n\n"
    "Example:  tllm bench sweep token-norm-dist --concurrency 1,2,4,8,16 --stream --output sweep",
)
search_app = typer.Typer(
    cls=FullSummaryGroup,
    no_args_is_help=True,
    help="Find the highest request rate that meets the objectives, and its confidence "
    "interval.\n\n"
    "Example:  tllm bench search token-norm-dist --slo 'ttft:p95<500ms' --slo 'itl:p99<50ms' "
    "--stream",
)


def _length(help_text: str, least: int = 1) -> object:
    return typer.Option(min=least, max=_MAX_TOKENS, help=help_text, rich_help_panel=_LENGTHS)


InputMean = Annotated[
    int,
    _length("Mean prompt length in tokens, excluding shared prefixes and conversation history."),
]
InputStdev = Annotated[int, _length("Standard deviation of the prompt length in tokens.", 0)]
OutputMean = Annotated[int, _length("Mean response length in tokens.")]
OutputStdev = Annotated[int, _length("Standard deviation of the response length in tokens.", 0)]


def token_norm_dist(
    common: SharedOptions,
    input_mean: InputMean = 128,
    input_stdev: InputStdev = 5,
    output_mean: OutputMean = 20,
    output_stdev: OutputStdev = 2,
) -> None:
    """Send prompts of random token ids with normally distributed lengths to `tensorrt_llm`.

    Each response has exactly the requested length. Without --request-rate and --concurrency, all
    requests are sent at the same time.

    Example:  tllm bench token-norm-dist --num-requests 64 --concurrency 8 --stream
    """
    workload = _lengths(input_mean, input_stdev, output_mean, output_stdev)
    run_job(Job("token-norm-dist", common), workload)


def token_from_histogram(
    common: SharedOptions,
    histogram_key: Annotated[
        str,
        typer.Option(
            help=(
                "Name of a histogram pair. For the name KEY, the KEY_ip histogram contains the "
                "prompt lengths, and the KEY_op histogram contains the response lengths. The "
                "built-in pair is `example`."
            )
        ),
    ] = "example",
    histogram_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON file with histograms. docs/guides/benchmark.md describes the format. "
            "Default: the built-in histograms.",
        ),
    ] = None,
) -> None:
    """Send prompts of random token ids to `tensorrt_llm`, with lengths from histograms.

    Example:  tllm bench token-from-histogram --histogram-key example --concurrency 32
    """
    from trtllm_serve_cli.bench.workloads.histogram import find_histogram

    workload = find_histogram(histogram_key, histogram_file)
    run_job(Job("token-from-histogram", common), workload)


def shared_prefix(
    common: SharedOptions,
    prefix_tokens: Annotated[
        int, typer.Option(min=1, max=_MAX_TOKENS, help="Length of each shared prefix in tokens.")
    ] = 512,
    num_prefixes: Annotated[
        int,
        typer.Option(
            min=1, help="Number of different prefixes. Each prompt starts with one of the prefixes."
        ),
    ] = 1,
    input_mean: InputMean = 128,
    input_stdev: InputStdev = 5,
    output_mean: OutputMean = 20,
    output_stdev: OutputStdev = 2,
) -> None:
    """Send prompts with shared prefixes to measure KV cache reuse.

    Example:  tllm bench shared-prefix --prefix-tokens 1024 --num-prefixes 4 --stream
    """
    from trtllm_serve_cli.bench.workloads.prefixes import SharedPrefix

    own = _lengths(input_mean, input_stdev, output_mean, output_stdev)
    run_job(Job("shared-prefix", common), SharedPrefix(own, prefix_tokens, num_prefixes))


def multi_turn(
    common: SharedOptions,
    turns: Annotated[int, typer.Option(min=2, help="Number of requests in each conversation.")] = 4,
    think_time: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Mean time between a response and the next request, in seconds.",
        ),
    ] = 0.0,
    prefix_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            max=_MAX_TOKENS,
            help="Length of the shared system prompt in tokens.",
        ),
    ] = 0,
    input_mean: InputMean = 128,
    input_stdev: InputStdev = 5,
    output_mean: OutputMean = 20,
    output_stdev: OutputStdev = 2,
) -> None:
    """Send conversations in which each prompt contains the previous prompts and responses.

    --request-rate and --concurrency apply to conversations, not to requests. After a response, the
    next turn is sent when the think time has passed.

    Example:  tllm bench multi-turn --turns 5 --think-time 2 --concurrency 16 --stream
    """
    from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn

    turn = _lengths(input_mean, input_stdev, output_mean, output_stdev)
    run_job(Job("multi-turn", common), MultiTurn(turn, turns, think_time, prefix_tokens))


def identity(
    common: SharedOptions,
    batch_size: Annotated[
        int, typer.Option("-b", "--batch-size", min=1, help="Number of prompts in each request.")
    ] = 8,
    start_len: Annotated[
        int, typer.Option("-s", "--start-len", min=1, help="Prompt length in tokens.")
    ] = 8,
    output_len: Annotated[
        int, typer.Option("-o", "--output-len", min=1, help="Response length in tokens.")
    ] = 10,
) -> None:
    """Send the same batch of prompts in every request, as NVIDIA's identity_test.py does.

    Example:  tllm bench identity --num-requests 10 --concurrency 1
    """
    from trtllm_serve_cli.bench.workloads.identity import Identity

    if batch_size > 1 and common.interface != "grpc":
        raise BadInput(
            f"A request with -i {common.interface} cannot contain {batch_size} prompts.",
            why=(
                "tllm sends only one prompt per request to Triton's generate endpoints and to "
                "OpenAI-compatible APIs"
            ),
            next_step=f"omit -i {common.interface}, or pass --batch-size 1",
        )
    run_job(Job("identity", common), Identity(batch_size, start_len, output_len))


def trace(
    common: SharedOptions,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSONL trace file with the fields timestamp (in ms), input_length, output_length "
            "and, optionally, hash_ids.",
        ),
    ],
    speed: Annotated[
        float,
        typer.Option(
            min=0.001,
            help=(
                "Replay speed relative to the recording. At speed 2, the replay takes half the "
                "recorded time."
            ),
        ),
    ] = 1.0,
    max_input_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum prompt length in tokens. Longer prompts are truncated. Default: no "
            "limit.",
        ),
    ] = None,
) -> None:
    """Replay a recorded trace with its arrival times, lengths and shared prefixes.

    --request-rate overrides the recorded arrival times.

    Example:  tllm bench trace conversation_trace.jsonl --speed 0.5 --duration 60 --stream
    """
    from trtllm_serve_cli.bench.workloads.trace import read_trace

    run_job(Job("trace", common), read_trace(file, max_input_len, speed))


def _lengths(
    input_mean: int, input_stdev: int, output_mean: int, output_stdev: int
) -> TokenNormDist:
    from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist

    return TokenNormDist(input_mean, input_stdev, output_mean, output_stdev)


_WORKLOADS: dict[str, Callable[..., None]] = {
    "token-norm-dist": token_norm_dist,
    "token-from-histogram": token_from_histogram,
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
    "identity": identity,
    "trace": trace,
    "dataset": text_workloads.dataset,
    "end-to-end": text_workloads.end_to_end,
}
_REQUIRED_ARGUMENTS = {"trace": " trace.jsonl", "dataset": " --dataset mini_cnn_eval.json"}
for _name, _workload in _WORKLOADS.items():
    _command = f"{_name}{_REQUIRED_ARGUMENTS.get(_name, '')}"
    _sweep = f"tllm bench sweep {_command} --concurrency 1,2,4,8 --stream --output sweep"
    _search = f"tllm bench search {_command} --slo 'ttft:p95<500ms' --stream"
    bench_app.command(_name)(with_options(_workload, CommonOptions))
    sweep_app.command(_name)(with_options(_workload, SweepOptions, _sweep))
    search_app.command(_name)(with_options(_workload, SearchOptions, _search))
bench_app.add_typer(sweep_app, name="sweep")
bench_app.add_typer(search_app, name="search")
bench_app.command("compare")(result_commands.compare)
bench_app.command("report")(result_commands.report)
bench_app.command("calibrate")(calibrate)
