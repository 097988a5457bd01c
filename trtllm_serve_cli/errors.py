"""What can go wrong and a user can put right.

    TllmError
    ├── BadInput            an argument or a file of the user's cannot be used
    │   └── UnknownModel    no such alias or imported model
    ├── SourceError         the checkpoint could not be had
    │   ├── GatedModel      the hub wants a licence accepted, or a token
    │   └── UnsafeCheckpoint  it would run code or unpickle; needs the user's word
    ├── BuildFailed         a checkpoint could not be made into an engine
    ├── MissingPart         a program or package that this command needs is not here
    ├── RepositoryError     a model repository is missing, taken or broken
    ├── LaunchFailed        the server did not become ready
    ├── NoServer            no server is running, or none answers at the address
    ├── RequestFailed       the server refused or failed a request
    │   └── TimedOut        the answer was not whole in time
    └── CheckFailed         what was measured is not what was demanded

Each says three things: what happened, why, and what to do next. `cli.main` prints them and leaves
with exit code 3. Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class TllmError(Exception):
    """Something a user can put right, in sentences for that user."""

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
    """An argument or a file of the user's cannot be used."""


class UnknownModel(BadInput):
    """No such alias or imported model."""


class SourceError(TllmError):
    """The checkpoint could not be had."""


class GatedModel(SourceError):
    """The hub wants a licence accepted, or a token."""


class UnsafeCheckpoint(SourceError):
    """The checkpoint would run code or unpickle data; that needs the user's word."""


class BuildFailed(TllmError):
    """A checkpoint could not be made into an engine."""


class MissingPart(TllmError):
    """A program or package that this command needs is not here."""


class RepositoryError(TllmError):
    """A model repository is missing, taken or broken."""


class LaunchFailed(TllmError):
    """The server did not become ready."""


class NoServer(TllmError):
    """No server is running, or none answers at the address."""


class RequestFailed(TllmError):
    """The server refused or failed a request."""


class TimedOut(RequestFailed):
    """The answer was not whole in time; the request has been cancelled."""


class CheckFailed(TllmError):
    """What was measured is not what was demanded."""
