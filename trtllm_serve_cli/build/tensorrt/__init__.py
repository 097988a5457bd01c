"""Plan TensorRT engines for each version of TensorRT-LLM.

`plan_tensorrt` takes a model's shape, `EngineOptions` and a TensorRT-LLM version. It returns the
commands: one that converts or quantizes the checkpoint, and `trtllm-build`. It runs nothing and
does not need TensorRT-LLM. Commands have only flags of the version. An option that the version does
not support raises `BadInput` with the version and the option.
"""
