"""Parse a server's log: its lines, and the causes of a failure."""
