"""Generate load from worker processes and check that the client is fast enough."""
