"""From a checkpoint to an engine, planned first.

Takes a `BuildRequest`, the checkpoint and the options in it; `plan_build` gives the commands as
data, `build_engine` runs them, each in a process of its own with its output in a log. The engine's
folder appears whole or not at all, and says in its `engine.json` what it was made from: the same
plan finds it again. What need not be built (a TensorRT engine that is there, a checkpoint for vLLM
or TensorRT-LLM's LLM API) is described.
"""
