"""Workloads: the sources of requests, one per file.

A workload draws `RequestSpec`s; the same generator state gives the same requests. Files and data
sets are read in advance; invalid content is a `BadInput` with the file and the line.
"""
