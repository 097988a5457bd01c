"""Report what the gateway does: metrics and the access log."""
