"""Plan TensorRT engines for each version of TensorRT-LLM.

`plan_tensorrt` takes a model's shape, `EngineOptions` and a TensorRT-LLM version. It returns a
command that converts or quantizes the checkpoint, and a `trtllm-build` command. For versions
without `trtllm-build`, it returns commands that run the model's build.py. Planning does not run the
commands or require TensorRT-LLM. The commands contain only flags that the version supports. If the
version does not support an option, `plan_tensorrt` raises `BadInput`. The error names the version
and the option.
"""
