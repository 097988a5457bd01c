"""Commands for servers.

They are start, stop, restart, status, logs, gateway, keys, load, unload, deploy and doctor.
"""
