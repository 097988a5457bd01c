"""Plan servers. `local_plan` inspects this machine, and `launch_plan` plans a server for it."""
