"""Plan a server: `launch_plan` is pure, `local_plan` reads the state of this machine."""
