"""Plan the processes that serve an engine, and the `mpirun` command that starts them."""
