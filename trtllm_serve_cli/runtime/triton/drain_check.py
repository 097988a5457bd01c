"""Models that take no new requests, because they are about to end.

Triton does not count the requests that a decoupled Python model still answers: told to stop or to
unload, it would end the model in the middle of them. So whoever is about to tell it waits for them
first, and says here that no others may come: by a file of the model's name in a folder that the
environment names.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..engine import InvalidRequest

_FOLDER = "TLLM_DRAINING"


def reject_if_draining(model: str) -> None:
    """Raise `InvalidRequest` when `model` takes no new requests."""
    folder = os.environ.get(_FOLDER)
    if folder and (Path(folder) / model).exists():
        raise InvalidRequest(f"{model} takes no new requests: it is being stopped")
