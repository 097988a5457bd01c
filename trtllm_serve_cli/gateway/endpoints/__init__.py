"""Handle the requests of the API."""
