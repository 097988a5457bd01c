"""The engines, one folder per engine kind, and the code that they share.

A folder is named after its engine kind. Its `engine.py` implements `runtime.engine.Engine`.
"""
