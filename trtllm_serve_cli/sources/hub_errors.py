"""The seam to huggingface_hub: what it raises becomes what a user can act on.

Its network errors are those of the HTTP library of its version (requests, httpx, httpx2), which all
go by `huggingface_hub.errors.HTTPError` or are an `OSError`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from trtllm_serve_cli.errors import GatedModel, SourceError
from trtllm_serve_cli.sources.source import HubSource

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token with read access"


class HubUnreachable(SourceError):
    """No answer from the hub; a copy in the cache may serve instead."""


class BrokenDownload(SourceError):
    """The hub answered, and the transfer broke off; what has arrived is kept where possible."""


@contextmanager
def translate_hub_errors(source: HubSource, url: str) -> Iterator[None]:
    """Raises `GatedModel` or `SourceError` for whatever huggingface_hub raises inside."""
    from huggingface_hub import errors

    xet_error = getattr(errors, "XetDownloadError", RuntimeError)
    try:
        yield
    except errors.GatedRepoError as error:
        raise _gated(source, url) from error
    except errors.RepositoryNotFoundError as error:
        raise _not_found(source) from error
    except errors.RevisionNotFoundError as error:
        raise _no_revision(source, url) from error
    except errors.HfHubHTTPError as error:
        raise _refused(source, url, error.response.status_code, str(error)) from error
    except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError) as error:
        raise _failed(source, url, error) from error
    except (xet_error, RuntimeError) as error:
        # hf_xet, which moves the large files, knows no narrower class.
        raise _cut(source, error) from error


def _gated(source: HubSource, url: str) -> GatedModel:
    return GatedModel(
        f"{source.repository} is gated.",
        why="its publisher wants a licence accepted before anyone downloads it",
        next_step=f"accept it at {url}/{source.repository}, then {_LOG_IN}",
    )


def _not_found(source: HubSource) -> SourceError:
    return SourceError(
        f"The hub shows no model {source.repository}.",
        why="it does not exist, or it is private and your token does not open it",
        next_step=f"check the name at the model's page; if it is private, {_LOG_IN}",
    )


def _no_revision(source: HubSource, url: str) -> SourceError:
    return SourceError(
        f"{source.repository} has no revision {source.revision}.",
        why="no branch, tag or commit goes by that name",
        next_step=f"look at {url}/{source.repository}/commits/main, or leave the revision out",
    )


def _refused(source: HubSource, url: str, status: int, message: str) -> SourceError:
    why = f"status {status} from {url}: {_first_line(message)}"
    if status in (401, 403):
        return GatedModel(
            f"The hub does not let you have {source.repository}.",
            why=why,
            next_step=f"{_LOG_IN}; a fine-grained token must allow reading gated repositories",
        )
    return SourceError(
        f"The hub did not give {source.repository}.",
        why=why,
        next_step="run the same command again in a while: complete files are kept",
    )


def _failed(source: HubSource, url: str, error: Exception) -> SourceError:
    cause = _find_disk_error(error)
    if cause is not None and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return SourceError(
            "The disk is full.",
            why=f"{cause.strerror} while writing {source}",
            next_step="make room and run the same command again, or set HF_HOME to a larger disk",
        )
    if cause is not None:
        return SourceError(
            f"The hub's cache cannot be written for {source}.",
            why=str(cause),
            next_step="mend that folder, or set HF_HOME to one that you can write to",
        )
    if "Consistency check failed" in str(error):
        return _cut(source, error)
    return HubUnreachable(
        f"{url} cannot be reached.",
        why=_first_line(str(error.__cause__ or error)) or type(error).__name__,
        next_step="check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT, and run the same "
        "command again: complete files are kept",
    )


def _cut(source: HubSource, error: Exception) -> BrokenDownload:
    return BrokenDownload(
        f"The download of {source} broke off.",
        why=_first_line(str(error)),
        next_step="run the same command again: complete files are kept",
    )


def _find_disk_error(error: Exception) -> OSError | None:
    """`error`, when it comes from the file system and not from a socket."""
    is_disk = isinstance(error, OSError) and error.filename is not None
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return error if isinstance(error, OSError) and (is_disk or is_full) else None


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else ""
