"""Store the gateway's API keys and look up the key of a request.

The key file contains only the SHA-256 hash of each key, so a copy of the file does not grant
access. A fast hash is sufficient, because keys have 256 random bits and cannot be brute-forced.
Slow hashes such as scrypt are needed only for passwords that people choose.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.choices import KeyPolicy
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.paths import hold_lock, write_text

PREFIX = "tllm-"
# File in a server's state folder that exists if the gateway has required keys.
KEYS_MARKER = "keys-required"
_NUM_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_VERSION = 1
RELOAD_PERIOD_S = 1.0
_KEPT = "the gateway continues to use the keys that it read before"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored API key with its limits. Limits that are None do not apply.

    Times are in seconds since the epoch.
    """

    name: str
    # SHA-256 hash of the key, in hexadecimal.
    hash: str
    created_at: float
    # None if the key does not expire.
    expires_at: float | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    # Maximum number of concurrent sequences.
    concurrency: int | None = None
    # Models that the key may use, or () if it may use all models.
    models: tuple[str, ...] = ()

    def is_expired(self, now_s: float) -> bool:
        """Return whether the key has expired by `now_s`."""
        return self.expires_at is not None and now_s >= self.expires_at

    def may_use(self, model: str) -> bool:
        """Return whether the key may use the model that is served as `model`."""
        return not self.models or model in self.models


def make_key() -> str:
    """Return a new random key."""
    return PREFIX + secrets.token_urlsafe(_NUM_BYTES)


def hash_key(key: str) -> str:
    """Return the SHA-256 hash of a key, in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """Return the keys in `file`, or no keys if the file is missing.

    Raise `BadInput` if the file is not readable or not valid.
    """
    try:
        return parse_keys(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise BadInput(
            f"The API keys in {file} cannot be read.",
            why=error.strerror or str(error),
            next_step=f"check the disk and the file permissions (`ls -l {file}`)",
        ) from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise BadInput(
            f"The API keys in {file} cannot be read.",
            why=f"the file is not a valid key file ({error})",
            next_step=f"correct the file, or delete it with `rm {file}` and add new keys with "
            "`tllm keys add NAME`",
        ) from error


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Parse the text of a key file.

    Raise `ValueError`, `TypeError`, `LookupError` or `RecursionError` if the text is not valid.
    """
    content = json.loads(text)
    if content["version"] != _VERSION:
        raise ValueError(f"version {content['version']!r} is not supported")
    return tuple(map(_read_key, content["keys"]))


def _read_key(fields: Mapping[str, Any]) -> ApiKey:
    """Return the key with these fields.

    Check the values here, because an invalid one would fail each request with the key.
    """
    key = ApiKey(**{**fields, "models": tuple(fields["models"])})
    if not isinstance(key.name, str) or not re.fullmatch(r"[0-9a-f]{64}", key.hash):
        raise ValueError("a key has an invalid name or hash")
    limits = (key.requests_per_minute, key.tokens_per_minute, key.concurrency)
    is_valid = (
        _is_number(key.created_at)
        and (key.expires_at is None or _is_number(key.expires_at))
        and all(each is None or (type(each) is int and each > 0) for each in limits)
        and isinstance(fields["models"], list)
        and all(isinstance(each, str) for each in key.models)
    )
    if not is_valid:
        raise ValueError(f"the key {key.name!r} has an invalid limit")
    return key


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def format_keys(keys: Sequence[ApiKey]) -> str:
    """Return the text of a key file that contains `keys`."""
    content = {"version": _VERSION, "keys": [dataclasses.asdict(key) for key in keys]}
    return json.dumps(content, indent=2) + "\n"


def add_key(file: Path, name: str, *, now_s: float, **limits: Any) -> str:
    """Create a key, add its hash to `file`, and return the key.

    The key is not stored, so it cannot be shown again. `limits` sets optional fields of `ApiKey`.
    Raise `BadInput` if the name is invalid or in use, or if the keys in `file` cannot be read.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a valid API key name.",
            why="a key name has at most 64 characters, starts with a letter or digit, and contains "
            "only letters, digits, '.', '_', '@' and '-'",
            next_step="choose a valid name, for example the user's name",
        )
    key = make_key()

    def append(keys: Sequence[ApiKey]) -> list[ApiKey]:
        if any(each.name == name for each in keys):
            raise BadInput(
                f"An API key named {name!r} already exists.",
                next_step=f"choose another name, or run `tllm keys revoke {name}` first",
            )
        return [*keys, ApiKey(name, hash_key(key), now_s, **limits)]

    _update(file, append)
    return key


def revoke_key(file: Path, name: str) -> None:
    """Remove a key from `file`.

    Raise `BadInput` if no key has this name, or if the keys cannot be read.
    """

    def remove(keys: Sequence[ApiKey]) -> list[ApiKey]:
        if all(each.name != name for each in keys):
            names = ", ".join(each.name for each in keys) or "none"
            raise BadInput(
                f"The API key {name!r} does not exist.",
                why=f"existing keys: {names}",
                next_step="pass the name of an existing key (see `tllm keys list`)",
            )
        return [each for each in keys if each.name != name]

    _update(file, remove)


def _update(file: Path, change: Callable[[Sequence[ApiKey]], Sequence[ApiKey]]) -> None:
    """Apply `change` to the keys in `file`, under a lock that prevents concurrent changes."""
    with hold_lock(file.parent / "locks" / "keys.lock", on_wait=lambda: None):
        write_text(file, format_keys(change(read_keys(file))), mode=0o600)


class KeyRing:
    """The keys that the gateway accepts.

    The keys are reloaded when the file changes. `policy` determines whether requests must have a
    key:

    - "on": always.
    - "off": never. The file is not read.
    - "auto": once the file exists. Deleting the file does not remove the requirement while the
      process runs, or while the file `marker` exists.

    `supervisor_token` is the key that the server's supervisor uses for warm-up requests, or "".
    `marker` is a file that is created when a key is first required, so that a restarted process
    also requires keys. `clock` returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        file: Path | None,
        policy: KeyPolicy,
        clock: Callable[[], float] = time.time,
        *,
        supervisor_token: str = "",
        marker: Path | None = None,
    ) -> None:
        self._file = None if policy == "off" else file
        self._clock = clock
        self._supervisor_key = (
            ApiKey("supervisor", hash_key(supervisor_token), 0.0) if supervisor_token else None
        )
        self._keys: dict[str, ApiKey] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._problem = ""
        self._next_check_s = float("-inf")
        self._is_required = policy == "on"
        self._marker, self._is_marked = marker, False
        if self._file is not None:
            self._is_required |= marker is not None and os.path.lexists(marker)
            # Read the file before the first request. If the file was deleted before then, the
            # gateway would otherwise accept requests without a key.
            self._load(self._file)

    @property
    def is_required(self) -> bool:
        """True if requests must have a key."""
        self._reload()
        return self._is_required

    def find(self, token: str) -> ApiKey | None:
        """Return the key that matches `token`, or None if no key matches or the key has expired.

        The lookup is safe against timing attacks: keys are looked up by hash, and the final
        comparison is constant-time.
        """
        self._reload()
        digest = hash_key(token)
        key = self._keys.get(digest, self._supervisor_key)
        if key is None or not hmac.compare_digest(key.hash, digest):
            return None
        return None if key.is_expired(self._clock()) else key

    def _reload(self) -> None:
        """Reload the file if it has changed. Check it at most every `RELOAD_PERIOD_S` seconds."""
        now_s = self._clock()
        # Check the file again if the wall clock was set back.
        is_recent = self._next_check_s - RELOAD_PERIOD_S <= now_s < self._next_check_s
        if self._file is None or is_recent:
            return
        self._next_check_s = now_s + RELOAD_PERIOD_S
        self._load(self._file)

    def _load(self, file: Path) -> None:
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._require()
                self._keys = {key.hash: key for key in read_keys(file)}
                # Set the stamp only after a successful read, so that the file is read again after
                # a transient error.
                self._stamp = stamp
            self._problem = ""
        except FileNotFoundError:
            self._keys, self._stamp = {}, None
            missing = f"{file} is missing; the gateway rejects all API keys"
            self._report(missing if self._is_required else "")
        except OSError as error:
            self._require()
            self._report(f"{file} cannot be read: {error.strerror or error}; {_KEPT}")
        except BadInput as error:
            self._report(f"{error.what.removesuffix('.')}: {error.why}; {_KEPT}")

    def _require(self) -> None:
        """Require keys from now on, and create the marker."""
        self._is_required = True
        if self._marker is None or self._is_marked:
            return
        self._is_marked = True
        try:
            self._marker.touch()
        except OSError as error:
            _log.error(
                "%s cannot be created: %s; if %s is deleted, a restarted gateway process accepts "
                "requests without an API key.",
                self._marker,
                error.strerror or error,
                self._file,
            )

    def _report(self, problem: str) -> None:
        """Log a problem with the file, or "". Do not repeat the message while it persists."""
        if problem and problem != self._problem:
            _log.error("%s.", problem)
        self._problem = problem
