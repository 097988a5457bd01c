"""Encode requests, decode responses, and send both over gRPC or HTTP connections."""
