"""What is sent: each source of requests in a file of its own.

A workload draws `RequestSpec`s: the same generator state, the same requests. Files and data sets
are read before; what cannot be used in one is a `BadInput` that names the file and the line.
"""
