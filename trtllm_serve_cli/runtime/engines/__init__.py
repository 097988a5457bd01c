"""Implement the engine kinds, one in each sub-package, and the code that they share.

A sub-package has the name of its engine kind, and its module `kind.py` describes the engine kind.
If an engine worker runs the engine, the sub-package also has a module `engine.py`, which implements
`runtime.engine.Engine`.
"""
