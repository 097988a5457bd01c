"""Results as JSON, tables, charts, an HTML page, a trace and a comparison.

`tllm bench --output` writes result folders (docs/metrics.md); a folder of such folders is a sweep.
All modules but `result_reader` and `report_writer` are pure.
"""
