"""Handle requests to the gateway's endpoints."""
