"""A stand-in for TensorRT-LLM with the signatures and shapes that an engine uses.

Its model counts up from the prompt's last token, the second sequence from 100 more, and so on. The
prompt's first token may be one of the commands in `llmapi`.
"""

__version__ = "1.2.0"
