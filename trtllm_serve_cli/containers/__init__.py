"""Run commands in docker or podman containers.

`container` builds the container engine's commands. `container_engine` finds a working engine and
runs the commands.
"""
