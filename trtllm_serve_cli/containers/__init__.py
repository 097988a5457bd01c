"""Run commands in docker or podman containers.

`container` plans the commands of the container engine. `container_engine` finds a working engine
and runs its commands.
"""
