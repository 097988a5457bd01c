"""Benchmarks: load the models of running servers and measure the responses.

A benchmark sends requests to its targets according to its settings, and returns a
`BenchmarkResult`: the record of every request, and the metrics computed from the records. It
guarantees that

- the same seed sends the same requests at the same due times,
- latencies count from the time when a request was due,
- responses are timestamped before they are decoded,
- the result reports if the client itself was too slow, and
- the metrics follow the formulas in docs/reference/benchmark-metrics.md.

    workloads     generate or read the requests to send
    model         define records, arrivals, objectives, and the served model
    transport     encode requests, decode responses, and transfer both over gRPC or HTTP
    generator     send the load from one or several processes
    stats         compute statistics and confidence intervals (pure)
    run           run a benchmark, a sweep over loads, or the search for the highest rate
    simulate      run benchmarks on simulated engines, without a server
    report        write results as JSON, tables, pages and traces, and compare results
"""
