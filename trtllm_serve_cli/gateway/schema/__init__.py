"""Define the request bodies of the gateway's APIs."""
