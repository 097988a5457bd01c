"""Workloads: generate random requests, or read requests from files and data sets.

A workload draws `RequestSpec`s. The same state of the random generator gives the same requests.
Files and data sets are read before the benchmark starts. Invalid content raises `BadInput` with the
file and the line.
"""
