"""Send requests and receive responses over gRPC and HTTP."""
