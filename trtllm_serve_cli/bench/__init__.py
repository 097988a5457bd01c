"""Benchmarks: load the models of running servers and measure what comes back.

Takes targets and settings, gives a `BenchmarkResult`: every request's record and the figures made
of them. It guarantees that the same seed sends the same requests at the same due times, that
latencies count from when a request was due, that responses are stamped before they are decoded,
that it says when the client itself was too slow, and that the figures are those of docs/metrics.md.

    workloads, arrivals, slo     what to send and when, and what is wanted of it (pure)
    settings, shares             a whole benchmark, and each worker's part of a run (pure)
    served_model, wire           a server's model; requests and responses as bytes
    over_grpc, over_http         what carries them
    load, worker, crew           the load generator, in one process or several
    selfwatch, sampling          the client's own load, and the server's metrics meanwhile
    records, request_times       what was seen of a request, and its formulas (pure)
    statistics, noise            the figures of many, and how much of them is chance (pure)
    benchmark                    from settings to result
    virtual_clock, virtual       the same without a server, on simulated engines
    calibrate                    the timing of a simulated engine, out of measured runs
    sweep, search                several benchmarks in turns; the highest rate that will do
    report, tables, checks       JSON and files; what is printed; references to be held against
    results                      what is made of result folders: pages, traces, comparisons
"""
