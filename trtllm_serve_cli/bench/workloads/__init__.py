"""Generate random requests, or read requests from files and data sets.

A workload produces `RequestSpec` objects. The same state of the random generator produces the same
requests. Files and data sets are read before the benchmark starts. If the content is invalid, the
functions that read it raise `BadInput`. The error names the file or data set and, except for
histograms, the position of the invalid entry.
"""
