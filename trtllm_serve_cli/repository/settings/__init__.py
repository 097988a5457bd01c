"""Show and change the parameters of a rendered repository, and track the engines it uses."""
