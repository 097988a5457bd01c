"""Commands about servers: start, stop, restart, status, logs, load, deploy, doctor."""
