"""Build engines from checkpoints.

`plan_build` turns a `BuildRequest` into commands, as data. `build_engine` runs each command in its
own process and appends the output to a log. The engine folder appears whole or not at all. Its
`engine.json` records what it was built from, so the same plan finds it again. Existing TensorRT
engines, and checkpoints for vLLM or TensorRT-LLM's LLM API, are described instead of built.
"""
