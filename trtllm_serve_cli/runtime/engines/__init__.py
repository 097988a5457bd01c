"""Implement the engine kinds in one sub-package each, and the code that they share.

Each sub-package has the name of its engine kind, and its `kind.py` describes the kind. If an engine
worker runs the engine, the sub-package's `engine.py` implements `runtime.engine.Engine`.
"""
