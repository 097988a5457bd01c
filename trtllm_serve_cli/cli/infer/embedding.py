"""Print the embedding of a prompt, for `tllm infer` with an embedding model."""

from __future__ import annotations

import typer

from trtllm_serve_cli.cli.infer import prompts
from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.option_signature import OptionValues
from trtllm_serve_cli.cli.shared.target import Target
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.option_fields import option_fields

# Number of values to print without --json.
_NUM_SHOWN = 8
# The options that also apply to embeddings.
_SUPPORTED = frozenset(("interface", "url", "tls_ca", "timeout", "stream"))


def infer_embedding(
    target: Target,
    prompt: str | None,
    options: InferOptions,
    request: OptionValues,
    *,
    as_json: bool,
) -> None:
    """Print the dimension and the first values of the embedding, or all values as JSON."""
    from trtllm_serve_cli.client.ask import embed
    from trtllm_serve_cli.client.endpoint import Endpoint

    check_usage(prompt, options, request)
    words = prompts.read_prompt(prompt or "")
    prompts.check_prompt(words)
    assert isinstance(target.endpoint, Endpoint)
    assert target.interface != "openai"
    found = embed(target.endpoint, target.model, words, target.interface, target.timeout_s)
    if as_json:
        output.show_json(
            {
                "model": target.model,
                "dimension": len(found.values),
                "num_input_tokens": found.num_input_tokens,
                "embedding": found.values,
            }
        )
        return
    first = ", ".join(f"{value:.6f}" for value in found.values[:_NUM_SHOWN])
    dots = ", …" if len(found.values) > _NUM_SHOWN else ""
    print(f"[{first}{dots}]")
    output.notify(f"{len(found.values)} values, {found.num_input_tokens} input tokens")


def check_usage(prompt: str | None, options: InferOptions, request: OptionValues) -> None:
    """Raise `BadParameter` if the prompt is missing or an option applies only to generated text."""
    if prompt is None:
        raise typer.BadParameter(
            "Embedding models do not support conversations or --batch. Pass PROMPT.",
            param_hint="PROMPT",
        )
    defaults = InferOptions()
    names = [
        *(
            each
            for each in InferOptions.__slots__
            if getattr(options, each) != getattr(defaults, each)
        ),
        *request,
    ]
    fields = {
        each.name: each for kind in (InferOptions, GenerateRequest) for each in option_fields(kind)
    }
    for name in names:
        if name not in _SUPPORTED:
            flag = fields[name].shown_as
            raise typer.BadParameter(
                f"{flag} applies only to models that generate text. Omit {flag}.", param_hint=flag
            )
