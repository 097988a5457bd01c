"""Handle the requests to the gateway's endpoints."""
