"""Read a server's log: its lines, and what a failure in it means."""
