"""How many processes serve an engine, and how `mpirun` starts them."""
