"""Implement the engine kinds and the code that they share.

Each engine kind has a sub-package of the same name, with a `kind.py` module that describes it. If
the engine runs in an engine worker, the sub-package also contains `engine.py`, which implements
`runtime.engine.Engine`.
"""
