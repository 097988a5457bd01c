"""Implement the engines, with one sub-package per engine kind, and the code that they share.

Each sub-package has the name of its engine kind, and its `kind.py` describes the kind. If an engine
worker runs the engine, `engine.py` implements `runtime.engine.Engine`.
"""
