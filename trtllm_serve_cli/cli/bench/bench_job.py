"""Derive a benchmark's targets, settings and load from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.bench.bench_options import CommonOptions, SharedOptions
from trtllm_serve_cli.cli.bench.simulate_option import open_simulation
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.openai_options import check_usage, find_openai_endpoint
from trtllm_serve_cli.cli.shared.target import BenchTarget, find_bench_target

if TYPE_CHECKING:
    from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
    from trtllm_serve_cli.bench.model.arrivals import Load
    from trtllm_serve_cli.bench.model.served_model import OpenAITarget, Target
    from trtllm_serve_cli.bench.model.slo import Objective
    from trtllm_serve_cli.bench.run.benchmark import Benchmark
    from trtllm_serve_cli.bench.workloads.dataset import Tokenizer
    from trtllm_serve_cli.bench.workloads.spec import Workload
    from trtllm_serve_cli.client.transport.openai.endpoint import Api

_DEFAULT_NUM_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class Job:
    """The name and options of a benchmark.

    `text_model` names the text model that receives the requests, in the form that
    `find_bench_target` expects. If `text_model` is None, the requests contain token ids instead of
    text. If `checks_answers` is set, the benchmark first checks that the text models return
    identical responses to the same prompt.
    """

    name: str
    common: SharedOptions
    text_model: str | None = None
    checks_answers: bool = False

    def find_targets(self) -> list[BenchTarget]:
        """Return one target for each combination of server and model in the options.

        `find_bench_target` chooses the server without -u and the model without -m. With -i openai,
        `find_openai_endpoint` and `find_model` choose them. Raise the errors of these functions, or
        `BadParameter` if the numbers of --metrics-url and -u options differ.
        """
        common = self.common
        found = [
            self._find_target(url, model)
            for url in common.url or (None,)
            for model in common.model or (None,)
        ]
        pages = common.metrics_url
        if not pages:
            return found
        if len(pages) != len(common.url or ()):
            raise typer.BadParameter(
                "The number of --metrics-url options differs from the number of -u options. Pass "
                "one --metrics-url for each -u."
            )
        from dataclasses import replace

        from trtllm_serve_cli.client.address import parse_address

        per_url = len(found) // len(pages)
        return [
            replace(target, metrics=parse_address(pages[index // per_url]))
            for index, target in enumerate(found)
        ]

    def _find_target(self, url: str | None, model: str | None) -> BenchTarget:
        common = self.common
        if common.interface != "openai":
            return find_bench_target(url, common.interface, model, self.text_model, common.tls_ca)
        from trtllm_serve_cli.client.transport.openai.served_models import find_model

        endpoint = find_openai_endpoint(url, common.api_key)
        return BenchTarget(str(endpoint.url), find_model(endpoint, model).name)

    def open_target(self, found: BenchTarget) -> Target | OpenAITarget:
        """Convert the target to the load generator's format."""
        from trtllm_serve_cli.bench.model.served_model import OpenAITarget, Target

        common = self.common
        if common.interface != "openai":
            return Target(
                found.address, found.model, common.interface, found.imported_model, found.tls
            )
        endpoint = find_openai_endpoint(found.address, common.api_key)
        default: Api = "completions" if self.text_model is None else "chat"
        return OpenAITarget(endpoint, found.model, common.api or default)


def open_points(
    points: Sequence[tuple[Job, BenchmarkSettings]],
    targets: Sequence[BenchTarget] | None,
    tokenizer: Tokenizer | None,
) -> list[Benchmark]:
    """Open a benchmark for each (job, settings) pair in `points`.

    If a job has the `--simulate` option, its benchmark is a simulation. All other benchmarks send
    requests to `targets` or, if `targets` is None, to the targets in the job's options. The jobs
    may differ in their models and loads. The targets of each model are searched for once.
    """
    from trtllm_serve_cli.bench.run.benchmark import open_benchmark

    found_for: dict[tuple[str, ...], Sequence[BenchTarget]] = {}
    opened = []
    for job, settings in points:
        if job.common.simulate is not None:
            opened.append(open_simulation(settings, job.common.simulate, job.common))
            continue
        models = tuple(job.common.model or ())
        if models not in found_for:
            found_for[models] = job.find_targets() if targets is None else targets
        found = found_for[models]
        opened.append(
            open_benchmark(
                settings,
                [job.open_target(target) for target in found],
                metrics=_metrics_pages(found),
                tokenizer=tokenizer,
            )
        )
    return opened


def check_answers(job: Job, benchmarks: Sequence[Benchmark]) -> None:
    """Check that text models respond identically to the same prompt, and print the result.

    Do nothing if `job.checks_answers` is not set or if the job is a simulation.
    OpenAI-compatible servers are skipped, because they do not serve a model as several text models.
    Raise `CheckFailed` if the responses differ, `NoServer` or `RequestFailed` if a request fails,
    or `BadInput` if a text model lacks an input.
    """
    if not job.checks_answers or job.common.simulate is not None:
        return
    from trtllm_serve_cli.bench.model.served_model import Target
    from trtllm_serve_cli.bench.run.answer_check import check_answers, describe_check

    targets = {
        Target(model.address, model.name, model.interface, tls=model.tls): benchmark.settings
        for benchmark in reversed(benchmarks)
        for model in benchmark.models
        if model.interface != "openai"
    }
    for target, settings in targets.items():
        output.notify(describe_check(check_answers(target, settings)))


def addresses_of(benchmark: Benchmark) -> list[str]:
    """Return the addresses that the benchmark sends requests to."""
    return [model.address for model in benchmark.models]


def plan_settings(job: Job, common: CommonOptions, workload: Workload) -> BenchmarkSettings:
    """Return the benchmark settings from the job's options.

    Raise `BadParameter` if options cannot be combined or require another option, or `BadInput` if
    an objective is invalid.
    """
    from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
    from trtllm_serve_cli.bench.model.arrivals import AllAtOnce

    _check_openai_usage(job, common)
    load = _plan_load(common, workload)
    if common.duration is not None and common.num_requests is not None:
        raise typer.BadParameter(
            "--duration and --num-requests cannot be used together. Omit one of them."
        )
    if common.duration is not None and isinstance(load, AllAtOnce):
        raise typer.BadParameter(
            "--duration requires --request-rate or --concurrency. Add one "
            "of these options, or omit --duration."
        )
    if common.duration is not None and (common.ramp or 0.0) >= common.duration:
        raise typer.BadParameter(
            f"--ramp must be shorter than the duration of the run ({common.duration:g} s), because "
            "requests that are due during the ramp are not measured. Decrease --ramp, or increase "
            "--duration."
        )
    if common.replicas > 1 and common.simulate is None:
        raise typer.BadParameter(
            "--replicas applies only to simulated engines. Add --simulate, or omit --replicas."
        )
    return BenchmarkSettings(
        workload=workload,
        load=load,
        num_requests=common.num_requests or workload.num_available or _DEFAULT_NUM_REQUESTS,
        duration_s=common.duration,
        num_warmup_requests=common.warmup,
        stream=common.stream,
        seed=common.seed,
        name=job.name,
        input_kind="tokens" if job.text_model is None else "text",
        repeat=common.repeat,
        num_workers=common.workers,
        timeout_s=common.timeout,
        server_times=common.server_times,
        objectives=_parse_objectives(common),
        sample_interval_s=common.sample_interval,
    )


def _check_openai_usage(job: Job, common: CommonOptions) -> None:
    check_usage(common.interface, common.api, common.api_key, common.tls_ca)
    if common.interface != "openai":
        return
    if common.server_times:
        raise typer.BadParameter(
            "--server-times cannot be used with -i openai, because OpenAI-compatible APIs do not "
            "report server timings. Omit one of them."
        )
    if common.api == "chat" and job.text_model is None:
        raise typer.BadParameter(
            "The chat completions API does not accept token ids. Omit --api chat, or send text "
            "with `tllm bench end-to-end`."
        )


def _plan_load(common: CommonOptions, workload: Workload) -> Load:
    from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate, AtTimes
    from trtllm_serve_cli.bench.workloads.trace import Trace

    rate, concurrency, ramp_s = common.request_rate, common.concurrency, common.ramp or 0.0
    if common.arrival is not None and rate is None:
        raise typer.BadParameter(
            "--arrival requires --request-rate. Add --request-rate, or omit --arrival."
        )
    if common.burstiness is not None and common.arrival != "gamma":
        raise typer.BadParameter(
            "--burstiness requires --arrival gamma. Add --arrival gamma, or omit --burstiness."
        )
    if rate is not None:
        if isinstance(workload, Trace) and workload.speed != 1:
            raise typer.BadParameter(
                "--speed applies only to the recorded arrival times, which a request rate "
                "replaces. Omit --speed or the request rate."
            )
        return AtRate(
            rate,
            common.arrival or "poisson",
            common.burstiness or 1.0,
            concurrency,
            ramp_s,
        )
    if isinstance(workload, Trace):
        if common.ramp is not None:
            raise typer.BadParameter(
                "With a trace, --ramp requires --request-rate. Add --request-rate, or omit --ramp."
            )
        if (common.num_requests or 0) > workload.num_available:
            raise typer.BadParameter(
                f"--num-requests {common.num_requests} exceeds the {workload.num_available} "
                "requests in the trace. Decrease --num-requests, or add --request-rate to repeat "
                "the trace's requests."
            )
        return AtTimes(workload.times_s, workload.speed, concurrency)
    if concurrency is not None:
        return AtConcurrency(concurrency, ramp_s)
    if common.ramp is not None:
        raise typer.BadParameter(
            "--ramp requires --request-rate or --concurrency. Add one of "
            "these options, or omit --ramp."
        )
    return AllAtOnce()


def _parse_objectives(common: SharedOptions) -> tuple[Objective, ...]:
    from trtllm_serve_cli.bench.model.slo import parse_objective

    objectives = tuple(parse_objective(text) for text in common.slo or ())
    is_set = {"--stream": common.stream, "--server-times": common.server_times}
    for objective in objectives:
        needed = objective.time_metric.needs
        if needed is not None and not is_set[needed]:
            raise typer.BadParameter(
                f"--slo {objective} requires {needed}. Add {needed}, or omit this objective."
            )
    return objectives


def _metrics_pages(targets: Sequence[BenchTarget]) -> dict[int, str]:
    """Return the distinct metrics addresses, keyed by target index.

    If several targets have the same metrics address, the key is the index of the first of them.
    """
    pages: dict[str, int] = {}
    for index, target in enumerate(targets):
        if target.metrics is not None:
            pages.setdefault(target.metrics, index)
    return {index: page for page, index in pages.items()}
