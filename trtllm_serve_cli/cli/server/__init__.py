"""Commands for servers: start, stop, restart, status, logs, load, unload, deploy, doctor."""
