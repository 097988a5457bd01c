"""Reject new requests to models that are draining.

Triton does not track the running requests of a decoupled Python model and aborts them when it stops
or unloads the model. To prevent aborted requests, `tllm` first marks the model as draining and
waits until its requests have ended. The marker is a file with the model's name in the folder
`$TLLM_DRAINING`.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..engine import InvalidRequest

_FOLDER = "TLLM_DRAINING"


def reject_if_draining(model: str) -> None:
    """Raise `InvalidRequest` if `model` is draining."""
    folder = os.environ.get(_FOLDER)
    if folder and (Path(folder) / model).exists():
        raise InvalidRequest(
            f"{model} does not accept new requests, because the model is being stopped or "
            "unloaded; retry later"
        )
