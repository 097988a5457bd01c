"""Benchmarks: load the models of running servers and measure the responses.

Targets and settings go in; a `BenchmarkResult` with the record of every request and the metrics
computed from them comes out. Guarantees: the same seed sends the same requests at the same due
times; latencies count from the time when a request was due; responses are timestamped before they
are decoded; the result reports when the client itself was too slow; the formulas are those of
docs/reference/benchmark-metrics.md.

    workloads     the requests to send (pure)
    model         records, arrivals, objectives, and the served model
    transport     requests and responses as bytes, and the connections that carry them
    generator     the load generator, in one process or several
    stats         the formulas and confidence intervals (pure)
    run           a benchmark, a sweep over loads, the search for the highest rate
    simulate      benchmarks on simulated engines, without a server
    report        results as JSON, tables, pages, traces and comparisons
"""
