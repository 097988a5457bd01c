"""The engine kinds: what each one is, from the plan of its build to the machine that serves it."""
