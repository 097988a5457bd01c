"""Commands for servers, such as start, stop and status."""
