"""Requests and responses on the wire, over gRPC and over HTTP."""
