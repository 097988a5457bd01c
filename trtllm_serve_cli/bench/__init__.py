"""Benchmarks: load the models of running servers and measure the responses.

Takes targets and settings, and returns a `BenchmarkResult`: every request's record and the figures
computed from them. Guarantees: the same seed sends the same requests at the same due times;
latencies count from the time when a request was due; responses are stamped before they are decoded;
the result reports when the client itself was too slow; the formulas are those of docs/metrics.md.

    workloads     what to send (pure)
    model         records, arrivals, objectives, and the served model
    transport     requests and responses as bytes, and the connections that carry them
    generator     the load generator, in one process or several
    stats         the formulas, and how much of a difference is noise (pure)
    run           a benchmark, a sweep over loads, the search for the highest rate
    simulate      the same without a server, on simulated engines
    report        JSON, tables, pages, traces and comparisons of results
"""
