"""The layouts other than `inflight`: `llmapi`, and that of Triton's vLLM backend."""
