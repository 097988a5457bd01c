"""Convert results to JSON, tables, charts, HTML pages and traces, and compare results.

With --output DIR, a benchmark writes a result folder. docs/reference/benchmark-metrics.md describes
the files in this folder. The folder of a sweep or a search contains a result folder for each load.
"""
