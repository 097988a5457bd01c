"""Define the errors that users can fix.

    TllmError
    ├── BadInput            an argument or a user's file cannot be used
    │   └── UnknownModel    no suitable model has this name, or a name is required
    ├── SourceError         the checkpoint cannot be fetched or read, or disk space is insufficient
    │   ├── GatedModel      the hub requires an accepted licence or a token
    │   └── UnsafeCheckpoint  loading the checkpoint could run code that the user has not allowed
    ├── BuildFailed         the engine could not be built, or its files are not valid
    ├── MissingPart         a program, package, image or GPU that the command requires is missing
    ├── RepositoryError     a model repository is missing, in use or broken
    ├── LaunchFailed        the server could not be started, or its Slurm job cannot be managed
    ├── NoServer            no server is running, or no server responds at the address
    ├── RequestFailed       the server rejected a request or could not complete it
    │   └── TimedOut        the server did not complete an operation in time
    └── CheckFailed         a benchmark check failed, for example because an objective was missed

Each error describes what happened, why, and what to do next. `cli.main` prints the error and exits
with code 3. It does the same for file system errors that users can fix, such as missing
permissions. Any other exception is a bug in tllm and ends the command with a traceback.
"""

from __future__ import annotations

import json


class TllmError(Exception):
    """The base class of errors that users can fix.

    - `what`: a sentence that describes what happened.
    - `why`: the cause, or "".
    - `next_step`: how to fix the error, or "".
    """

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


def explain_invalid_file(name: str, error: Exception) -> str:
    """Describe why the file `name` does not have the expected content.

    `error` was raised when the file was read, parsed, or searched for its keys.
    """
    match error:
        case FileNotFoundError():
            return f"{name} is missing"
        case OSError():
            return f"{name} cannot be read: {error.strerror or error}"
        case KeyError():
            return f"{name} does not contain {error.args[0]!r}"
        case UnicodeDecodeError():
            return f"{name} is not UTF-8 text"
        case json.JSONDecodeError():
            return f"{name} is not valid JSON: {error}"
        case ValueError():
            return f"{name} is not valid: {error}"
        case _:
            return f"{name} does not have the structure that tllm writes"


class BadInput(TllmError):
    """Raised if an argument or a file from the user cannot be used."""


class UnknownModel(BadInput):
    """Raised if no suitable model has the requested name, or if a model name is required."""


class SourceError(TllmError):
    """Raised if a checkpoint cannot be fetched or read, or if there is not enough disk space."""


class GatedModel(SourceError):
    """Raised if the hub requires an accepted licence or a token to download a model."""


class UnsafeCheckpoint(SourceError):
    """Raised if loading a checkpoint could run code that the user has not allowed."""


class BuildFailed(TllmError):
    """Raised if the engine could not be built, or if the engine files are not valid."""


class MissingPart(TllmError):
    """Raised if a program, package, image or GPU that the command requires is missing."""


class RepositoryError(TllmError):
    """Raised if a model repository is missing, in use or broken."""


class LaunchFailed(TllmError):
    """Raised if the server could not be started, or if tllm cannot manage its Slurm job."""


class NoServer(TllmError):
    """Raised if no server is running, or if no server responds at the address."""


class RequestFailed(TllmError):
    """Raised if the server rejected a request or could not complete it."""


class TimedOut(RequestFailed):
    """Raised if the server did not complete an operation in time."""


class CheckFailed(TllmError):
    """Raised if a benchmark check failed, for example because an objective was missed."""
