"""The load generator: settings, worker processes, and the health of the client itself."""
