"""Results as JSON, tables, charts, HTML pages, traces and comparisons.

`tllm bench --output` writes result folders (docs/reference/benchmark-metrics.md); a folder of such
folders is a sweep. All modules except `result_reader` and `report_writer` are pure.
"""
