"""The plan of a server: `launch_plan` decides as data, `local_plan` reads this machine."""
