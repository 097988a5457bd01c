"""Encode requests, send them over gRPC or HTTP connections, and decode the responses."""
