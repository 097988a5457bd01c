"""Build engines from checkpoints.

`plan_build` turns a `BuildRequest` into a `BuildPlan`, which lists the commands. `build_engine`
runs each command in its own process and appends the output to a log. The engine folder appears only
after the last step has succeeded. Its `engine.json` records what the engine was built from, so that
a later build of the same plan reuses the engine. Existing TensorRT engines, and checkpoints for
vLLM or TensorRT-LLM's LLM API, are described instead of built.
"""
