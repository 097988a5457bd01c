"""The engines, one folder per engine kind, and what they share.

A folder has the name of its engine kind. `engine.py` in it implements `runtime.engine.Engine`.
"""
