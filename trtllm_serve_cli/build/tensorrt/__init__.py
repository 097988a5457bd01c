"""Plan TensorRT engine builds for different TensorRT-LLM versions.

`plan_tensorrt` takes a model's shape, the checkpoint's path, `EngineOptions` and a `Toolkit`, which
contains the TensorRT-LLM version. It returns a step that converts or quantizes the checkpoint, and
a step that runs `trtllm-build`. For versions that build the model's engines with a build.py, it
returns steps that run this script instead.

Planning does not run the commands or require TensorRT-LLM. The commands contain only flags that the
version supports. If the version does not support an option, `plan_tensorrt` raises a `BadInput`
that names the version and the option.
"""
