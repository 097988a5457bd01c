"""Launch a server for a model repository and supervise it.

`plan_launch` plans how to run Triton. `launch` starts a supervisor, which starts Triton, waits
until each loaded text model has generated a token or computed an embedding, and keeps the server
running. The supervisor records the server's state in the server's folder. If the start fails, no
processes are left running.
"""
