"""Convert results to JSON, tables, charts, HTML pages and traces, and compare results.

`tllm bench --output DIR` writes a result folder. docs/reference/benchmark-metrics.md describes the
files in this folder. The folder of a sweep contains a result folder for each point.
"""
