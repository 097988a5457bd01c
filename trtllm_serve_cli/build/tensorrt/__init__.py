"""TensorRT engines, planned version by version.

Takes a model's shape, `EngineOptions` and the TensorRT-LLM that is to build; `plan_tensorrt` gives
the commands: one that converts or quantises the checkpoint, and `trtllm-build`. Nothing is run, and
no package of TensorRT-LLM is needed. No flag is passed that the version does not have; what was
asked for and cannot be had is a `BadInput` that names version and option.
"""
