"""Generate random requests, or read requests from files and data sets.

A workload produces `RequestSpec` objects. The same random generator state produces the same
requests. Files and data sets are read before the benchmark starts. Functions that read files or
data sets raise `BadInput` if the content is invalid. The error names the file or data set and,
except for histograms, the position of the invalid entry.
"""
