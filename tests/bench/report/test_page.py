from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.browser import needs_chromium, open_page
from tests.samples.bench_results import make_result, store
from trtllm_serve_cli.bench.model.arrivals import AllAtOnce, AtConcurrency, AtRate
from trtllm_serve_cli.bench.model.slo import parse_objective
from trtllm_serve_cli.bench.report.page import render_page
from trtllm_serve_cli.bench.report.result_reader import StoredResult, read_results
from trtllm_serve_cli.bench.run.sampling import ServerSample
from trtllm_serve_cli.bench.workloads.lengths import TokenNormDist

# Finds overlapping and clipped text in the browser's layout.
LAYOUT = """(() => {
const boxes = svg => [...svg.querySelectorAll("text")].filter(t => t.textContent.trim())
  .map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width);
const found = {overlaps: [], cut: [], wide: document.documentElement.scrollWidth, small: 99};
for (const svg of document.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect(), all = boxes(svg);
  all.forEach(([words, a], index) => {
    found.small = Math.min(found.small, a.height);
    if (a.left < frame.left - 1 || a.right > frame.right + 1) found.cut.push(words);
    for (const [other, b] of all.slice(index + 1))
      if (a.left < b.right - 1 && b.left < a.right - 1
          && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        found.overlaps.push(words + " / " + other);
  });
}
return found;
})()"""


class _ExternalResources(HTMLParser):
    """The external resources and scripts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.found.append(tag)
        self.found += [
            f"{tag} {name}={value}"
            for name, value in attrs
            if name in ("src", "href") and not (value or "").startswith("data:")
        ]


@pytest.fixture
def sweep(tmp_path: Path) -> list[StoredResult]:
    for rate in (4, 16, 24, 32):
        store(make_result(AtRate(rate)), tmp_path / "sweep" / f"rate-{rate}")
    return read_results([tmp_path / "sweep"])


def test_values_have_three_digits_and_no_exponents(keep: Callable[..., StoredResult]) -> None:
    result = keep()
    times = dict(result.figures["schedule_lag"])
    times |= {"mean_ms": 999.7, "min_ms": -0.00002, "p50_ms": 0.0123, "p99_ms": 999.4}
    result.summary["summary"].update(schedule_lag=times, completed_requests_per_s=12345.6)
    page = re.sub(r"\s+", " ", render_page([result]))
    row = re.search(r"Schedule lag</t[dh]>(.*?)</tr>", page)
    assert row is not None
    cells = re.findall(r">([^<> ]+)</t", row[1])
    assert [cells[place] for place in (0, 1, 2, 5)] == ["1,000", "0", "0.012", "999"]
    assert "12,346" in page


def test_title_names_the_imported_model(keep: Callable[..., StoredResult]) -> None:
    result = make_result()
    models = tuple(dataclasses.replace(each, imported_model="demo") for each in result.models)
    page = render_page([keep(dataclasses.replace(result, models=models))])
    assert "<title>token-norm-dist on demo (tensorrt_llm)</title>" in page


def test_page_is_self_contained(
    keep: Callable[..., StoredResult], sweep: list[StoredResult]
) -> None:
    for page in (render_page([keep()]), render_page(sweep)):
        external = _ExternalResources()
        external.feed(page)
        assert external.found == []
        assert "@import" not in page
        assert "url(" not in page


def test_page_has_distributions_timelines_and_configuration(
    keep: Callable[..., StoredResult],
) -> None:
    page = render_page([keep(make_result(AtRate(20), runs=2))])
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions[:6] == [
        "Request latency: cumulative distribution of requests",
        "Request latency: distribution",
        "Time to first token: cumulative distribution of requests",
        "Time to first token: distribution",
        "Inter-token latency: cumulative distribution of gaps",
        "Inter-token latency: distribution",
    ]
    panels = ["Requests in flight", "Latency of each request, by due time"]
    panels += ["Server KV cache", "Server queue", "Server batch"]
    assert captions[6:] == panels * 2
    for words in ("127.0.0.1:8001", "x86_64", "2.51.0", "workload.input_mean", "20 requests/s"):
        assert words in page


def test_sweep_page_has_throughput_and_latency(sweep: list[StoredResult]) -> None:
    page = render_page(sweep)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions[:4] == [
        "Request latency vs. throughput",
        "Time to first token vs. throughput",
        "Inter-token latency vs. throughput",
        "Throughput vs. speed per user",
    ]
    assert "<title>16/s</title>" in page


def _section(page: str, title: str) -> list[list[str]]:
    """Return the cells of each table row in a section of the page."""
    (section,) = re.findall(f"<h2>{re.escape(title)}</h2>(.*?)</section>", page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]


def test_sweep_page_has_shared_and_different_settings(sweep: list[StoredResult]) -> None:
    page = render_page(sweep)
    assert _section(page, "Differences") == [
        ["Result", "load.request_rate_per_s"],
        *([f"{rate} requests/s", f"{rate}"] for rate in (4, 16, 24, 32)),
    ]
    shared = dict(_section(page, "Configuration and machine"))
    assert (shared["workload.input_mean"], shared["architecture"]) == ("128", "x86_64")
    assert "load.request_rate_per_s" not in shared


def test_page_of_two_sweeps_has_the_configuration_of_both(tmp_path: Path) -> None:
    for name, machine, length in (("old", "x86_64", 128), ("new", "aarch64", 256)):
        for rate in (4, 16):
            made = make_result(AtRate(rate), num_requests=20, machine=machine)
            settings = dataclasses.replace(made.settings, workload=TokenNormDist(length))
            folder = tmp_path / name / f"rate-{rate}"
            store(dataclasses.replace(made, settings=settings), folder)
    page = render_page(read_results([tmp_path / "old", tmp_path / "new"]))
    paths = [f"{tmp_path}/{name}/rate-{rate}" for name in ("old", "new") for rate in (4, 16)]
    assert _section(page, "Differences") == [
        [
            "Result",
            "workload.input_mean",
            "load.request_rate_per_s",
            "Client machine: architecture",
        ],
        [paths[0], "128", "4", "x86_64"],
        [paths[1], "128", "16", "x86_64"],
        [paths[2], "256", "4", "aarch64"],
        [paths[3], "256", "16", "aarch64"],
    ]
    loads = _section(page, "All loads")
    assert [row[:2] for row in loads[1:]] == [
        [path, f"{rate} requests/s"] for path, rate in zip(paths, (4, 16, 4, 16), strict=True)
    ]


def test_sweep_page_has_objectives_and_failures_of_each_load(tmp_path: Path) -> None:
    for rate, limit in ((4, "80ms"), (16, "100ms")):
        objectives = [parse_objective(f"ttft:p95<{limit}")]
        made = make_result(AtRate(rate), objectives=objectives, fails_every=rate * 3)
        store(made, tmp_path / f"rate-{rate}")
    results = read_results([tmp_path])
    page = render_page(results)
    assert [row[:2] + row[3:] for row in _section(page, "Objectives")[1:]] == [
        ["4 requests/s", "ttft:p95&lt;80ms", "missed"],
        ["16 requests/s", "ttft:p95&lt;100ms", "met"],
    ]
    assert _section(page, "Failures")[1:] == [
        ["4 requests/s", "server: out of &lt;memory&gt;", "10"],
        ["16 requests/s", "server: out of &lt;memory&gt;", "2"],
    ]
    assert page.count('<li class="limit">') == 2
    loads = _section(page, "All loads")
    goodput = loads[0].index("Goodput (requests/s)")
    assert float(loads[2][goodput]) == pytest.approx(
        results[1].figures["goodput_requests_per_s"], rel=0.01
    )


def test_page_of_many_results_states_which_timelines_are_missing(tmp_path: Path) -> None:
    for rate in range(1, 14):
        store(make_result(AtRate(rate), num_requests=1), tmp_path / f"rate-{rate}")
    page = render_page(read_results([tmp_path]))
    assert "<h2>Timeline: 12 requests/s</h2>" in page
    assert "<h2>Timeline: 13 requests/s</h2>" not in page
    assert "shows the timelines of the first 12 results" in page


def test_page_of_two_sweeps_has_separate_lines_with_different_names(tmp_path: Path) -> None:
    sweeps = [tmp_path / name / "sweep" for name in ("main", "change")]
    for sweep, rate in itertools.product(sweeps, (4, 16)):
        store(make_result(AtRate(rate), num_requests=20), sweep / f"rate-{rate}")
    page = render_page(read_results(sweeps))
    latency, *_, cdf = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)[:5]
    paths = re.findall(r'class="line [^"]*" d="M([^"]*)"', latency)
    assert [len(path.split()) for path in paths] == [2] * 6
    for figure, num_lines in ((latency, 6), (cdf, 4)):
        labels = re.findall(r"<i></i>(.*?)</li>", figure)
        assert len(set(labels)) == len(labels) == num_lines
    assert f"<h2>Timeline: {sweeps[1]}/rate-16</h2>" in page


def test_unstreamed_run_has_no_token_charts(keep: Callable[..., StoredResult]) -> None:
    page = render_page([keep(make_result(AllAtOnce(), stream=False))])
    assert "Request latency: distribution" in page
    assert "Inter-token" not in page


def test_run_without_completed_requests_has_a_page(
    keep: Callable[..., StoredResult],
) -> None:
    page = render_page([keep(make_result(AtConcurrency(2), num_requests=3, fails_every=1))])
    assert "Failed requests (3 of 3) are excluded" in page
    assert "out of &lt;memory&gt;" in page


def test_banners_warn_about_partial_and_failed_runs(
    keep: Callable[..., StoredResult],
) -> None:
    page = render_page([keep(make_result(ending="interrupted", loop_busy=0.97, fails_every=40))])
    banners = re.findall(r'class="banner" role="alert">(.*?)</p>', page)
    assert banners == [
        "The result is partial: the run was interrupted.",
        "The client was the bottleneck: a worker process was busy for 97% of the run; "
        "increase --workers.",
        "Failed requests (3 of 120) are excluded from the latencies.",
    ]


def test_page_states_that_the_metrics_could_not_be_read(keep: Callable[..., StoredResult]) -> None:
    result = make_result()
    run = dataclasses.replace(result.runs[0], samples=(ServerSample(0, 101.0, error="no"),))
    page = render_page([keep(dataclasses.replace(result, runs=(run,)))])
    assert "Server metrics were not sampled." in page
    assert "Server metrics were not sampled." not in render_page([keep(name="sampled")])


def test_complete_run_has_no_banner(keep: Callable[..., StoredResult]) -> None:
    assert 'class="banner"' not in render_page([keep()])


def test_objectives_are_listed_and_drawn(keep: Callable[..., StoredResult]) -> None:
    objectives = [parse_objective("ttft:p95<80ms"), parse_objective("itl:p99<1s")]
    page = render_page([keep(make_result(objectives=objectives))])
    assert page.count('<li class="limit"><i></i>ttft:p95&lt;80ms</li>') == 2
    assert 'class="limit"><i></i>itl' not in page
    assert "<td>missed</td>" in page
    assert "<td>met</td>" in page


@needs_chromium
def test_browser_renders_without_warnings_or_overlaps(
    keep: Callable[..., StoredResult], sweep: list[StoredResult], tmp_path: Path
) -> None:
    objectives = [parse_objective("ttft:p95<200ms")]
    pages = []
    for number, results in enumerate(([keep(make_result(objectives=objectives))], sweep)):
        pages.append(tmp_path / f"{number}.html")
        pages[-1].write_text(render_page(results))
    with open_page(tmp_path / "profile") as browser:
        for page, width in itertools.product(pages, (400, 1400)):
            browser.open(page.as_uri(), width=width)
            assert browser.problems == []
            found = browser.evaluate(LAYOUT)
            assert (found["overlaps"], found["cut"]) == ([], [])
            assert found["wide"] <= width
            assert 10 < found["small"] < 99, "there is text, and it is large enough to read"
