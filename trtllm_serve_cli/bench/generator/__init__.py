"""Send the load: settings, worker processes, and checks that the client is fast enough."""
