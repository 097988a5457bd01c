"""Plan the layouts `llmapi` and `vllm`.

`planning.repository_plan` plans the layout `inflight`.
"""
