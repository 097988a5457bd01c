"""Plan model repositories in the `embedding`, `gpt`, `llmapi` and `vllm` layouts.

The `planning.repository_plan` module plans the `inflight` layout.
"""
