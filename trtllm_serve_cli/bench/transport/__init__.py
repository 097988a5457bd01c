"""Encode requests, send them over gRPC or HTTP, and decode the responses."""
