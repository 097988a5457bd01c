"""Translate huggingface_hub's errors into instances of `SourceError` that suggest a next step.

huggingface_hub raises the network errors of its HTTP library, which is requests, httpx or httpx2,
depending on the version. These errors are subclasses of `huggingface_hub.errors.HTTPError` or
`OSError`.
"""

from __future__ import annotations

import errno
import re
import shlex
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trtllm_serve_cli.errors import GatedModel, SourceError
from trtllm_serve_cli.sources.hub_address import HubAddress

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token with read access"


class _TemporaryError(SourceError):
    """The base class of transient errors.

    `wait_s` is the retry delay in seconds, or None if the hub did not request a delay.
    """

    wait_s: float | None = None


class HubUnreachable(_TemporaryError):
    """Raised if the hub cannot be reached, or if the environment enables offline mode.

    In both cases, callers can use a cached copy of the checkpoint.
    """


class HubBusy(_TemporaryError):
    """Raised if the hub is overloaded or the client has exceeded the hub's rate limit."""


class BrokenDownload(_TemporaryError):
    """Raised if the hub responded, but the transfer was interrupted."""


@contextmanager
def translate_hub_errors(source: HubAddress, url: str) -> Iterator[None]:
    """Translate huggingface_hub's errors in the `with` block.

    Raise `GatedModel` if the model is gated or the hub denies access. Raise another `SourceError`
    for other errors, for example if the network fails or the hub does not have the repository.
    """
    from huggingface_hub import errors

    xet_error = getattr(errors, "XetDownloadError", RuntimeError)
    try:
        yield
    except errors.GatedRepoError as error:
        raise _gated(source, url, error) from error
    except errors.RepositoryNotFoundError as error:
        raise _not_found(source) from error
    except errors.RevisionNotFoundError as error:
        raise _no_revision(source, url) from error
    except errors.LocalEntryNotFoundError as error:
        raise _failed(source, url, error) from error
    except errors.HfHubHTTPError as error:
        raise _refused(source, url, error) from error
    except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError) as error:
        raise _failed(source, url, error) from error
    except (xet_error, RuntimeError) as error:
        # Treat a RuntimeError as an interrupted download, because hf_xet, which transfers large
        # files, raises only built-in exceptions.
        raise _broken_download(source, error) from error


def _gated(source: HubAddress, url: str, error: Any) -> GatedModel:
    page = f"{url}/{source.repository}"
    if error.response.status_code == 403:
        # The hub sends status 403 if the token is valid, but the token's owner does not have access
        # yet.
        return GatedModel(
            f"{source.repository} is gated, and you do not have access yet.",
            why=error.response.headers.get("X-Error-Message")
            or "you have not accepted the licence, or the publisher has not approved your request",
            next_step=f"check your request at {page}, then wait for the publisher's approval",
        )
    return GatedModel(
        f"{source.repository} is gated.",
        why="the publisher requires that you accept a licence before you download the model",
        next_step=f"accept the licence at {page}, then {_LOG_IN}",
    )


def _not_found(source: HubAddress) -> SourceError:
    return SourceError(
        f"{source.repository} was not found on the hub.",
        why="the model does not exist, or it is private and your token does not grant access",
        next_step=f"check the name on the model's page; if the model is private, {_LOG_IN}",
    )


def _no_revision(source: HubAddress, url: str) -> SourceError:
    return SourceError(
        f"{source.repository} does not have a revision named {source.revision}.",
        why="no branch, tag or commit has this name",
        next_step=f"choose a commit listed at {url}/{source.repository}/commits/main, or omit the "
        "revision",
    )


def _refused(source: HubAddress, url: str, error: Any) -> SourceError:
    status = error.response.status_code
    why = f"{url} responded with status {status}: {_first_line(str(error))}"
    if status in (401, 403):
        return GatedModel(
            f"The hub denied access to {source.repository}.",
            why=why,
            next_step=f"{_LOG_IN}; a fine-grained token needs read access to gated repositories",
        )
    if status == 429:
        busy = HubBusy(
            "The hub's rate limit was exceeded.",
            why=why,
            next_step="run the same command again later; for a higher limit, " + _LOG_IN,
        )
        busy.wait_s = find_wait_s(error.response.headers)
        return busy
    kind = HubBusy if status >= 500 or status == 408 else SourceError
    return kind(
        f"{source.repository} could not be downloaded from the hub.",
        why=why,
        next_step="run the same command again later to resume the download",
    )


def find_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the retry delay from the Retry-After or RateLimit header, in seconds, or None.

    RFC 9110 defines Retry-After. An IETF draft defines RateLimit.
    """
    after = headers.get("Retry-After", "")
    if after.isdecimal():
        return float(after)
    left = re.search(r";\s*t=(\d+)", headers.get("RateLimit", ""))
    return float(left[1]) if left else None


def _failed(source: HubAddress, url: str, error: Exception) -> SourceError:
    cause = _find_disk_error(error)
    if cause is not None and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return SourceError(
            "There is not enough disk space for the download.",
            why=f"writing {source} failed: {cause.strerror}",
            next_step="free disk space and run the same command again, or set HF_HOME to a folder "
            "with more space",
        )
    if cause is not None:
        return SourceError(
            f"{source} cannot be written to the Hugging Face cache.",
            why=str(cause),
            next_step="make the cache folder writable, or set HF_HOME to a writable folder",
        )
    if "Consistency check failed" in str(error):
        return _broken_download(source, error)
    return _unreachable(url, list(_walk_causes(error)))


def _unreachable(url: str, causes: list[BaseException]) -> HubUnreachable:
    """Return the error for a network failure.

    `causes` is the exception chain, starting with the exception that was raised.
    """
    text = next((line for each in reversed(causes) if (line := _first_line(str(each)))), "")
    why = text or type(causes[0]).__name__
    again = "then run the same command again to resume the download"
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
        return HubUnreachable(
            f"The certificate of {url} is not trusted.",
            why=why,
            next_step="if your network uses a proxy, set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to "
            "a file that contains the proxy's CA certificate",
        )
    if any(isinstance(each, socket.gaierror) for each in causes):
        return HubUnreachable(
            f"The host name in {url} cannot be resolved.",
            why=why,
            next_step=f"check the network and HF_ENDPOINT, {again}",
        )
    if any("Proxy" in type(each).__name__ for each in causes):
        return HubUnreachable(
            f"The proxy rejected the request to {url}.",
            why=why,
            next_step=f"check HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT) and NO_PROXY, {again}",
        )
    return HubUnreachable(
        f"{url} cannot be reached.",
        why=why,
        next_step=f"check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT, {again}",
    )


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes, down to the root cause."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def explain_web_page(url: str) -> SourceError:
    """Return the error for a response that is not from the hub, for example from a proxy."""
    return SourceError(
        f"The response from {url} did not come from the hub.",
        why="the response is neither a file list nor a file; possible causes are a proxy, a "
        "login page or a wrong HF_ENDPOINT",
        next_step=f"inspect the response with `curl -sI {shlex.quote(url)}`, then check "
        "HTTPS_PROXY and HF_ENDPOINT",
    )


def _broken_download(source: HubAddress, error: Exception) -> BrokenDownload:
    return BrokenDownload(
        f"The download of {source} was interrupted.",
        why=_first_line(str(error)),
        next_step="run the same command again to resume the download",
    )


def _find_disk_error(error: Exception) -> OSError | None:
    """Return `error` if it is a file system error, otherwise None."""
    is_disk = isinstance(error, OSError) and error.filename is not None
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return error if isinstance(error, OSError) and (is_disk or is_full) else None


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else ""
