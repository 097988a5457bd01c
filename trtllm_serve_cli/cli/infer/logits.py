"""Write the logits of a response to NumPy files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trtllm_serve_cli.cli.infer.infer_options import InferOptions
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.client.generate import LOGITS
from trtllm_serve_cli.errors import BadInput, RequestFailed

if TYPE_CHECKING:
    from trtllm_serve_cli.client.generate import Completion


def list_requested(options: InferOptions) -> list[str]:
    """Return the names of the inputs that request the logits selected in `options`."""
    return [f"return_{name}" for name in LOGITS if getattr(options, name) is not None]


def check_usage(options: InferOptions, *, has_prompt: bool) -> None:
    """Raise `BadParameter` unless the request is sent over gRPC and has a single prompt."""
    name = next(name for name in LOGITS if getattr(options, name) is not None)
    hint = "--" + name.replace("_", "-")
    if options.interface != "grpc":
        raise typer.BadParameter(
            f"{hint} requires gRPC. Omit -i {options.interface}.", param_hint=hint
        )
    if not has_prompt or options.batch is not None:
        raise typer.BadParameter(
            (f"{hint} requires a single prompt. Pass PROMPT, and omit --batch."), param_hint=hint
        )


def write_logits(completion: Completion, options: InferOptions) -> None:
    """Write each requested array to its file.

    Raise `RequestFailed` if the response lacks the array, or `BadInput` if the file cannot be
    written.
    """
    for name in LOGITS:
        path = getattr(options, name)
        if path is not None:
            _write(path, name, completion)


def _write(path: Path, name: str, completion: Completion) -> None:
    import numpy as np

    logits = completion.logits.get(name)
    if logits is None:
        raise RequestFailed(
            f"The response does not contain {name.replace('_', ' ')}.",
            why="the engine was built without support for logits",
            next_step=f"import the model again with `--build-option gather_{name}=true`",
        )
    aside = path.with_name(f".{path.name}.aside")
    try:
        with aside.open("wb") as stream:
            np.save(stream, logits)
        aside.replace(path)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written.",
            # If only a part of the array can be written, NumPy raises an error without `strerror`.
            why=error.strerror or f"the disk may be full: {error}",
            next_step=f"choose a file in a writable folder with --{name.replace('_', '-')}",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    output.notify(f"{name.replace('_', ' ')}: {list(logits.shape)} {logits.dtype} in {path}")
