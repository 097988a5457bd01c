"""Implement each engine kind in a sub-package, and the code that these sub-packages share.

Each sub-package has the name of its engine kind, and its `kind.py` describes the kind. If an engine
worker runs the engine, the sub-package's `engine.py` implements `runtime.engine.Engine`.
"""
