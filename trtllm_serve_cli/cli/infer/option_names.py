"""Name the options of `tllm infer` in the server's error messages."""

from __future__ import annotations

import re

from trtllm_serve_cli.cli.infer.guided_decoding import find_guide_option
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared.option_signature import OptionValues
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.option_fields import option_fields


def name_options(message: str, options: InferOptions, request: OptionValues) -> str:
    """Return `message` with each tensor name replaced by the option with which the user set it."""
    fields = option_fields(GenerateRequest)
    names = {each.name: each.shown_as for each in fields if each.name in request}
    if option := find_guide_option(options):
        names["guided_decoding_guide"] = option
    # The engine's tensors for top-k and top-p sampling have a prefix.
    pattern = rf"\b(?:runtime_)?({'|'.join(names)})\b"
    return re.sub(pattern, lambda found: names[found[1]], message) if names else message
