"""Run the benchmark, sweep or search that a workload command selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtllm_serve_cli.cli.bench.bench_job import Job
from trtllm_serve_cli.cli.bench.bench_options import CommonOptions, SearchOptions, SweepOptions
from trtllm_serve_cli.cli.bench.search_command import run_search_job
from trtllm_serve_cli.cli.bench.single_run import run_one
from trtllm_serve_cli.cli.bench.sweep_command import run_sweep_job
from trtllm_serve_cli.cli.shared.target import BenchTarget

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
    from trtllm_serve_cli.bench.workloads.spec import Workload


def run_job(
    job: Job,
    workload: Workload,
    targets: Sequence[BenchTarget] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Run a benchmark, sweep or search, depending on the type of the job's options.

    Print the result. If the options set an output folder, write the result files to the folder. If
    the job fails, raise an exception that sets the exit code. If `targets` is None, use the targets
    in the job's options. Sweeps ignore `targets`.
    """
    match job.common:
        case SweepOptions() as options:
            run_sweep_job(job, options, workload, tokenizer)
        case SearchOptions() as options:
            run_search_job(job, options, workload, targets, tokenizer)
        case CommonOptions() as options:
            run_one(job, options, workload, targets, tokenizer)
