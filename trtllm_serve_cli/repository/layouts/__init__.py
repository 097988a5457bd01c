"""Plan model repositories in the layouts `embedding`, `gpt`, `llmapi` and `vllm`.

The module `planning.repository_plan` plans the layout `inflight`.
"""
