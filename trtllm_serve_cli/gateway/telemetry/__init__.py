"""Report the gateway's requests as metrics, log lines and traces."""
