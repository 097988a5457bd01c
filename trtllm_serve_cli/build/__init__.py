"""Build engines from checkpoints.

`engine_kinds.dispatch.plan_build` turns a `BuildRequest` into a `BuildPlan`, which lists the
commands that build the engine. `build_engine` runs each command in a separate process and appends
the output to a log. The engine folder is created only after the last step has succeeded. Its
`engine.json` file records what the engine was built from, so that a later build of the same plan
can reuse the engine. No build is required for existing TensorRT engines, or for checkpoints that
vLLM or TensorRT-LLM's LLM API loads directly.
"""
