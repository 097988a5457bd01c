"""`tllm bench`: load running servers and print what they did."""

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

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist

_MAX_TOKENS = 1_000_000
_LENGTHS = "Lengths, in tokens"

bench_app = typer.Typer(
    cls=FullSummaryGroup,
    no_args_is_help=True,
    help="Load running servers and measure them.\n\n"
    "Example:  tllm bench token-norm-dist --request-rate 5 --stream",
)
sweep_app = typer.Typer(
    cls=FullSummaryGroup,
    no_args_is_help=True,
    help="Measure a workload at several loads, or on several models, in turns.\n\n"
    "With --output each point has a folder, and one page shows throughput against latency.\n\n"
    "Example:  tllm bench sweep token-norm-dist --concurrency 1,2,4,8,16 --stream --output sweep",
)
search_app = typer.Typer(
    cls=FullSummaryGroup,
    no_args_is_help=True,
    help="Find the highest rate that meets objectives, with its confidence interval.\n\n"
    "Example:  tllm bench search token-norm-dist --slo 'ttft:p95<500ms' --slo 'itl:p99<50ms' "
    "--stream",
)


def _length(help_text: str, least: int = 1) -> object:
    return typer.Option(min=least, max=_MAX_TOKENS, help=help_text, rich_help_panel=_LENGTHS)


InputMean = Annotated[int, _length("Mean prompt.")]
InputStdev = Annotated[int, _length("Its standard deviation.", 0)]
OutputMean = Annotated[int, _length("Mean answer.")]
OutputStdev = Annotated[int, _length("Its standard deviation.", 0)]


def token_norm_dist(
    common: SharedOptions,
    input_mean: InputMean = 128,
    input_stdev: InputStdev = 5,
    output_mean: OutputMean = 20,
    output_stdev: OutputStdev = 2,
) -> None:
    """Send random token ids of normally distributed lengths to `tensorrt_llm`.

    Without --request-rate and --concurrency, all requests are sent at once. Every answer has
    exactly the length that was drawn.

    Example:  tllm bench token-norm-dist --num-requests 64 --concurrency 8 --stream
    """
    workload = _lengths(input_mean, input_stdev, output_mean, output_stdev)
    run_job(Job("token-norm-dist", common), workload)


def token_from_histogram(
    common: SharedOptions,
    histogram_key: Annotated[
        str, typer.Option(help="The histograms KEY_ip and KEY_op; upstream's is `example`.")
    ] = "example",
    histogram_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Histograms of yours, as JSON (docs/benchmark.md)."),
    ] = None,
) -> None:
    """Send random token ids whose lengths follow histograms to `tensorrt_llm`.

    Example:  tllm bench token-from-histogram --histogram-key example --concurrency 32
    """
    from trtllm_serve_cli.bench.workloads.histogram import find_histogram

    workload = find_histogram(histogram_key, histogram_file)
    run_job(Job("token-from-histogram", common), workload)


def shared_prefix(
    common: SharedOptions,
    prefix_tokens: Annotated[
        int, typer.Option(min=1, max=_MAX_TOKENS, help="Tokens that requests begin with alike.")
    ] = 512,
    num_prefixes: Annotated[int, typer.Option(min=1, help="How many such beginnings.")] = 1,
    input_mean: InputMean = 128,
    input_stdev: InputStdev = 5,
    output_mean: OutputMean = 20,
    output_stdev: OutputStdev = 2,
) -> None:
    """Send prompts that begin alike, as system prompts do: shows what KV-cache reuse saves.

    Example:  tllm bench shared-prefix --prefix-tokens 1024 --num-prefixes 4 --stream
    """
    from trtllm_serve_cli.bench.workloads.prefixes import SharedPrefix

    own = _lengths(input_mean, input_stdev, output_mean, output_stdev)
    run_job(Job("shared-prefix", common), SharedPrefix(own, prefix_tokens, num_prefixes))


def multi_turn(
    common: SharedOptions,
    turns: Annotated[int, typer.Option(min=2, help="Requests of each conversation.")] = 4,
    think_time: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Mean time between an answer and the next question."
        ),
    ] = 0.0,
    prefix_tokens: Annotated[
        int, typer.Option(min=0, max=_MAX_TOKENS, help="A system prompt that all share.")
    ] = 0,
    input_mean: InputMean = 128,
    input_stdev: InputStdev = 5,
    output_mean: OutputMean = 20,
    output_stdev: OutputStdev = 2,
) -> None:
    """Hold conversations: each prompt has all turns before it, with the server's answers.

    --request-rate and --concurrency count conversations; a turn is due when its user has thought.

    Example:  tllm bench multi-turn --turns 5 --think-time 2 --concurrency 16 --stream
    """
    from trtllm_serve_cli.bench.workloads.prefixes import MultiTurn

    turn = _lengths(input_mean, input_stdev, output_mean, output_stdev)
    run_job(Job("multi-turn", common), MultiTurn(turn, turns, think_time, prefix_tokens))


def identity(
    common: SharedOptions,
    batch_size: Annotated[int, typer.Option("-b", "--batch-size", min=1, help="Rows.")] = 8,
    start_len: Annotated[int, typer.Option("-s", "--start-len", min=1, help="Prompt.")] = 8,
    output_len: Annotated[int, typer.Option("-o", "--output-len", min=1, help="Answer.")] = 10,
) -> None:
    """Send one request of several rows again and again, as upstream's identity test does.

    Example:  tllm bench identity --num-requests 10 --concurrency 1
    """
    from trtllm_serve_cli.bench.workloads.identity import Identity

    run_job(Job("identity", common), Identity(batch_size, start_len, output_len))


def trace(
    common: SharedOptions,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSONL with timestamp (ms), input_length, output_length, hash_ids.",
        ),
    ],
    speed: Annotated[
        float, typer.Option(min=0.001, help="Replay so many times as fast as recorded.")
    ] = 1.0,
    max_input_len: Annotated[
        int | None, typer.Option(min=1, help="Cut longer prompts to this.")
    ] = None,
) -> None:
    """Replay a recorded load: its times, its lengths, and which prompts began alike.

    With --request-rate its requests come at that rate instead.

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
