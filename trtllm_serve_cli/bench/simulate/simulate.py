"""Run a benchmark on simulated engines with a virtual clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from trtllm_serve_cli.bench.generator.settings import BenchmarkSettings
from trtllm_serve_cli.bench.generator.worker_plan import Share, plan_workers
from trtllm_serve_cli.bench.model.served_model import CORE_MODEL, ServedModel
from trtllm_serve_cli.bench.run.benchmark import Benchmark, Run, Watch
from trtllm_serve_cli.bench.simulate.virtual_clock import SendSchedule, run_simulated
from trtllm_serve_cli.bench.workloads.identity import Identity
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.runtime.engines.sim.timing import Simulation


def open_simulated(
    settings: BenchmarkSettings, simulation: Simulation, name: str, replicas: int = 1
) -> Benchmark:
    """Return a benchmark that runs on `replicas` simulated engines, without warm-up.

    The requests and due times are the same as in a single-worker benchmark of a real server that
    does not report its vocabulary size. Raise `BadInput` for text workloads, and for `Identity`
    workloads with several prompts per request, because simulated engines accept only a single
    prompt of token ids per request.
    """
    workload = settings.workload
    if settings.input_kind == "text":
        raise _refuse(
            settings,
            "a simulated engine accepts only token ids",
            "run another workload, such as token-norm-dist",
        )
    if isinstance(workload, Identity) and workload.batch_size > 1:
        raise _refuse(
            settings,
            "a simulated engine accepts only one prompt per request",
            "pass --batch-size 1",
        )
    model = ServedModel(
        address=f"virtual clock, {replicas} x {name}",
        name=CORE_MODEL,
        version="",
        server_version=simulation.origin,
        is_decoupled=True,
        max_batch_size=simulation.limits.max_batch_size,
        vocab_size=None,
        imported_model=name,
    )

    def measure(number: int, watch: Watch) -> tuple[Run, int]:
        share = plan_workers(one_worker, (model,), run=number, start=benchmark.num_drawn)[0]
        return _run(settings, share, simulation, replicas, number), 0

    one_worker = replace(settings, num_workers=1)
    benchmark = Benchmark(settings, (model,), measure)
    return benchmark


def _refuse(settings: BenchmarkSettings, why: str, next_step: str) -> BadInput:
    return BadInput(
        f"The workload {settings.name} cannot be simulated.",
        why=why,
        next_step=f"{next_step}, or omit --simulate",
    )


def _run(
    settings: BenchmarkSettings,
    share: Share,
    simulation: Simulation,
    replicas: int,
    number: int,
) -> Run:
    started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    records = run_simulated(
        share.specs,
        simulation,
        SendSchedule(share.due_s, share.concurrency, share.ramp_s, share.duration_s),
        replicas=replicas,
        stream=settings.stream,
        seed=settings.seed + number,
    )
    return Run(
        started_at=started_at,
        start=0.0,
        ending="finished",
        records=tuple(replace(record, run=number) for record in records),
        workers=(),
    )
