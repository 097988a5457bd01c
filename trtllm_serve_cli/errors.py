"""Errors that a user can fix.

    TllmError
    ├── BadInput            an argument or a file of the user cannot be used
    │   └── UnknownModel    no alias or imported model has this name
    ├── SourceError         the checkpoint could not be fetched
    │   ├── GatedModel      the hub requires an accepted licence or a token
    │   └── UnsafeCheckpoint  the checkpoint runs code or unpickles data without permission
    ├── BuildFailed         the engine could not be built from the checkpoint
    ├── MissingPart         a program or package that the command requires is not installed
    ├── RepositoryError     a model repository is missing, in use or broken
    ├── LaunchFailed        the server did not become ready
    ├── NoServer            no server is running, or none responds at the address
    ├── RequestFailed       the server rejected or failed a request
    │   └── TimedOut        the response was not complete in time
    └── CheckFailed         a measurement does not meet the requirement

Each has three parts: what happened, why, and what to do next. `cli.main` prints them and exits with
code 3. Any other exception is a bug in tllm and keeps its traceback.
"""

from __future__ import annotations


class TllmError(Exception):
    """An error that the user can fix, with its cause and the next step."""

    def __init__(self, what: str, *, why: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"Why: {self.why}")
        if self.next_step:
            parts.append(f"Next: {self.next_step}")
        return "\n".join(parts)


class BadInput(TllmError):
    """An argument or a file of the user that cannot be used."""


class UnknownModel(BadInput):
    """A name that is neither an alias nor an imported model."""


class SourceError(TllmError):
    """A checkpoint that could not be fetched."""


class GatedModel(SourceError):
    """A model for which the hub requires an accepted licence or a token."""


class UnsafeCheckpoint(SourceError):
    """A checkpoint that runs code or unpickles data, without the user's permission."""


class BuildFailed(TllmError):
    """A failure to build an engine from a checkpoint."""


class MissingPart(TllmError):
    """A program or package that the command requires and that is not installed."""


class RepositoryError(TllmError):
    """A model repository that is missing, in use or broken."""


class LaunchFailed(TllmError):
    """A server that did not become ready."""


class NoServer(TllmError):
    """No running server, or no response at the address."""


class RequestFailed(TllmError):
    """A request that the server rejected or failed."""


class TimedOut(RequestFailed):
    """A request that was cancelled since its response was not complete in time."""


class CheckFailed(TllmError):
    """A measurement that does not meet the requirement."""
