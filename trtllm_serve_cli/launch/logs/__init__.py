"""Parse a server's log: classify its lines and find the causes of a failure."""
