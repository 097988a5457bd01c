"""Start, supervise and stop a server on this machine.

`python -m trtllm_serve_cli.launch.supervisor SERVER_DIRECTORY` runs a supervisor.
"""
