"""Plan a server: `local_plan` inspects this machine and passes the facts to `launch_plan`."""
