"""Convert results to JSON, tables, charts, HTML pages and traces, and compare results.

`tllm bench --output` writes a result folder (docs/reference/benchmark-metrics.md). For a sweep, the
folder has a result folder for each point.
"""
