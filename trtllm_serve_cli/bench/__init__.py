"""Benchmark the models on running servers.

A benchmark sends requests to its targets and returns a `BenchmarkResult`, which contains a record
of every request and the metrics computed from these records. A benchmark guarantees that

- the same settings and seed produce the same requests and, in an open loop, the same due times,
- latencies and times to first token are measured from the due time, and also from the send time,
- responses are timestamped before they are decoded,
- the result reports whether the client itself was too slow, and
- the metrics follow the formulas in docs/reference/benchmark-metrics.md.

    workloads     generate or read the requests to send
    model         define records, arrivals, objectives, and the served model
    transport     encode requests, decode responses, and transfer both over gRPC or HTTP
    generator     send the load from one or several processes
    stats         compute statistics and confidence intervals, without I/O
    run           run a benchmark, a sweep over loads, or a search for the highest rate
    simulate      run benchmarks on simulated engines, without a server, and calibrate the engines
    report        write results as JSON, tables, pages and traces, and compare results
"""
