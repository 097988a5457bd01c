"""A stand-in for TensorRT-LLM, of which it has what an engine touches: signatures and shapes.

Its model counts up from the prompt's last token, the second sequence from 100 more, and so on. The
prompt's first token may be one of `llmapi`'s commands.
"""

__version__ = "1.2.0"
