"""Implement the engine kinds and the code that they share.

Each engine kind is a sub-package whose `kind.py` module describes the kind. If the engine runs in
an engine worker, the sub-package also contains `engine.py`, which implements
`runtime.engine.Engine`.
"""
