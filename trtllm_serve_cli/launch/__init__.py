"""From a model repository to a server that is ready, and what becomes of it.

`plan_launch` decides as data which Triton runs how; `launch` starts a supervisor, which starts it,
waits until a token was generated through the repository, keeps it running and writes down in the
server's folder what it knows. A server that does not become ready leaves nothing running.
"""
