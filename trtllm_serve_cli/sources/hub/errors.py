"""The seam to huggingface_hub: what it raises becomes what a user can act on.

Its network errors are those of the HTTP library of its version (requests, httpx, httpx2), which all
go by `huggingface_hub.errors.HTTPError` or are an `OSError`.
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
    """It may go better in a while: in `wait_s` seconds, if the hub said so."""

    wait_s: float | None = None


class HubUnreachable(_TemporaryError):
    """No answer from the hub; a copy in the cache may serve instead."""


class HubBusy(_TemporaryError):
    """The hub answers that it cannot, or that it was asked too often."""


class BrokenDownload(_TemporaryError):
    """The hub answered, and the transfer broke off; what has arrived is kept where possible."""


@contextmanager
def translate_hub_errors(source: HubAddress, url: str) -> Iterator[None]:
    """Raises `GatedModel` or `SourceError` for whatever huggingface_hub raises inside."""
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
        # hf_xet, which moves the large files, knows no narrower class.
        raise _broken_download(source, error) from error


def _gated(source: HubAddress, url: str, error: Any) -> GatedModel:
    page = f"{url}/{source.repository}"
    if error.response.status_code == 403:
        # The token is good, and its owner is not on the list.
        return GatedModel(
            f"{source.repository} is gated, and you are not let in yet.",
            why=error.response.headers.get("X-Error-Message")
            or "you have not accepted its licence, or its publisher has not answered yet",
            next_step=f"see at {page} whether you have accepted it, and wait for the publisher",
        )
    return GatedModel(
        f"{source.repository} is gated.",
        why="its publisher wants a licence accepted before anyone downloads it",
        next_step=f"accept it at {page}, then {_LOG_IN}",
    )


def _not_found(source: HubAddress) -> SourceError:
    return SourceError(
        f"The hub shows no model {source.repository}.",
        why="it does not exist, or it is private and your token does not open it",
        next_step=f"check the name at the model's page; if it is private, {_LOG_IN}",
    )


def _no_revision(source: HubAddress, url: str) -> SourceError:
    return SourceError(
        f"{source.repository} has no revision {source.revision}.",
        why="no branch, tag or commit goes by that name",
        next_step=f"look at {url}/{source.repository}/commits/main, or leave the revision out",
    )


def _refused(source: HubAddress, url: str, error: Any) -> SourceError:
    status = error.response.status_code
    why = f"status {status} from {url}: {_first_line(str(error))}"
    if status in (401, 403):
        return GatedModel(
            f"The hub does not let you have {source.repository}.",
            why=why,
            next_step=f"{_LOG_IN}; a fine-grained token must allow reading gated repositories",
        )
    if status == 429:
        busy = HubBusy(
            "The hub was asked too often from here.",
            why=why,
            next_step="run the same command again in a while; who is logged in may ask more often: "
            + _LOG_IN,
        )
        busy.wait_s = find_wait_s(error.response.headers)
        return busy
    kind = HubBusy if status >= 500 or status == 408 else SourceError
    return kind(
        f"The hub did not give {source.repository}.",
        why=why,
        next_step="run the same command again in a while: what has come is kept",
    )


def find_wait_s(headers: Mapping[str, str]) -> float | None:
    """How long the answer asks to wait, by Retry-After (RFC 9110) or RateLimit (its IETF draft)."""
    after = headers.get("Retry-After", "")
    if after.isdecimal():
        return float(after)
    left = re.search(r";\s*t=(\d+)", headers.get("RateLimit", ""))
    return float(left[1]) if left else None


def _failed(source: HubAddress, url: str, error: Exception) -> SourceError:
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
        return _broken_download(source, error)
    return _unreachable(url, list(_walk_causes(error)))


def _unreachable(url: str, causes: list[BaseException]) -> HubUnreachable:
    """One sentence for each of the ways in which a network fails."""
    text = next((line for each in reversed(causes) if (line := _first_line(str(each)))), "")
    why = text or type(causes[0]).__name__
    again = "and run the same command again: what has come is kept"
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
        return HubUnreachable(
            f"The certificate of {url} is not trusted here.",
            why=why,
            next_step="if a proxy of your network stands between, set SSL_CERT_FILE and "
            "REQUESTS_CA_BUNDLE to a file with its CA certificate",
        )
    if any(isinstance(each, socket.gaierror) for each in causes):
        return HubUnreachable(
            f"The name in {url} is not known to the name servers.",
            why=why,
            next_step=f"check the network and HF_ENDPOINT, {again}",
        )
    if any("Proxy" in type(each).__name__ for each in causes):
        return HubUnreachable(
            f"The proxy does not let requests to {url} through.",
            why=why,
            next_step=f"check HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT) and NO_PROXY, {again}",
        )
    return HubUnreachable(
        f"{url} cannot be reached.",
        why=why,
        next_step=f"check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT, {again}",
    )


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it came from, down to the library that met it first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def explain_web_page(url: str) -> SourceError:
    """What to tell when something between here and the hub answers in its place."""
    return SourceError(
        f"{url} answers with something that is not the hub's.",
        why="it is no listing and no file; a proxy, a login page or a wrong HF_ENDPOINT does that",
        next_step=f"look at it: curl -sI {shlex.quote(url)}; check HTTPS_PROXY and HF_ENDPOINT",
    )


def _broken_download(source: HubAddress, error: Exception) -> BrokenDownload:
    return BrokenDownload(
        f"The download of {source} broke off.",
        why=_first_line(str(error)),
        next_step="run the same command again: what has come is kept",
    )


def _find_disk_error(error: Exception) -> OSError | None:
    """`error`, when it comes from the file system and not from a socket."""
    is_disk = isinstance(error, OSError) and error.filename is not None
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return error if isinstance(error, OSError) and (is_disk or is_full) else None


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else ""
