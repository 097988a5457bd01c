"""Name the options of `tllm infer` in errors about the request."""

from __future__ import annotations

import re

from trtllm_serve_cli.cli.infer.guided_decoding import find_guide_option
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared.option_signature import OptionValues
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.errors import TllmError
from trtllm_serve_cli.option_fields import option_fields


def name_options(error: TllmError, options: InferOptions, request: OptionValues) -> None:
    """Replace each tensor name in `error` by the option with which the user set the tensor."""
    fields = option_fields(GenerateRequest)
    names = {each.name: each.shown_as for each in fields if each.name in request}
    if option := find_guide_option(options):
        names |= dict.fromkeys(("guided_decoding_guide_type", "guided_decoding_guide"), option)
    if options.context_logits is not None:
        names["return_context_logits"] = "--context-logits"
    if options.generation_logits is not None:
        names["return_generation_logits"] = "--generation-logits"
    if not names:
        return
    # The engine's tensors for top-k and top-p have the prefix `runtime_`. Do not replace parts of
    # options, paths and quoted names, such as "seed" in "--seed".
    pattern = rf"(?<![-/.'\w])(?:runtime_)?({'|'.join(names)})(?![-/\w]|\.\w)"
    error.what, error.why, error.next_step = (
        re.sub(pattern, lambda found: names[found[1]], each)
        for each in (error.what, error.why, error.next_step)
    )
