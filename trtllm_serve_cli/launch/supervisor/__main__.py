"""Run a supervisor with `python -m trtllm_serve_cli.launch.supervisor`."""

from trtllm_serve_cli.launch.supervisor.supervisor import main

main()
