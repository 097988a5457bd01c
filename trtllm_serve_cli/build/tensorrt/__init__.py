"""Plan TensorRT engines for each version of TensorRT-LLM.

`plan_tensorrt` takes a model's shape, `EngineOptions` and a TensorRT-LLM version. It returns the
commands: one that converts or quantizes the checkpoint, and `trtllm-build`. It runs nothing and
works without TensorRT-LLM. The commands contain only flags that the version supports. If the
version does not support an option, `plan_tensorrt` raises `BadInput`, which names both.
"""
