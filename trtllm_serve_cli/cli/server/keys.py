"""`tllm keys`: manage API keys for the OpenAI-compatible API."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from trtllm_serve_cli.cli.command_groups import FullSummaryGroup
from trtllm_serve_cli.cli.shared import output
from trtllm_serve_cli.cli.shared.options import JsonOption
from trtllm_serve_cli.errors import BadInput

keys_app = typer.Typer(
    cls=FullSummaryGroup,
    help="Manage API keys for the OpenAI-compatible API.",
    no_args_is_help=True,
)
_UNITS_S = {"m": 60, "h": 3600, "d": 86400}
_MAX_DURATION = 999_999


@keys_app.command()
def add(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Key name, for example the user's name."),
    ],
    requests_per_minute: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Maximum number of requests per minute. Default: no limit."
        ),
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Maximum number of prompt and generated tokens per minute. Default: no limit.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Maximum number of concurrent sequences, including those of queued requests. A "
            "request with n=4 counts as 4 sequences. Default: no limit.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            metavar="NAME",
            help="Comma-separated list of models that the key can use, as listed by /v1/models. "
            "Repeatable. Default: all models.",
        ),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(
            "--expires-in",
            metavar="DURATION",
            help="Time until the key expires, in minutes, hours or days, for example 30m, 12h or "
            "90d. Default: the key does not expire.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create and print an API key.

    The key is shown only once, because only its hash is stored. As soon as the first key exists,
    the OpenAI-compatible API requires a key, unless authentication is off. Running servers accept a
    new key within a second.

    Example:  tllm keys add alice --requests-per-minute 60 --expires-in 90d
    """
    from trtllm_serve_cli.gateway.access.keys import add_key
    from trtllm_serve_cli.paths import find_home

    now_s = time.time()
    file = find_home().keys
    is_first = not file.exists()
    key = add_key(
        file,
        name,
        now_s=now_s,
        expires_at=now_s + parse_duration(expires_in) if expires_in else None,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrency=concurrency,
        models=() if model is None else parse_models(model),
    )
    if as_json:
        output.show_json({"name": name, "key": key})
    else:
        print(key)
    if is_first:
        output.notify(
            "The OpenAI-compatible API now requires an API key, unless authentication is off."
        )
    output.notify("Store the key now, because it cannot be shown again.")


@keys_app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the API keys with their limits.

    Example:  tllm keys list
    """
    from trtllm_serve_cli.gateway.access.keys import read_keys
    from trtllm_serve_cli.paths import find_home

    now_s = time.time()
    rows = [_describe(key, now_s) for key in read_keys(find_home().keys)]
    if as_json:
        output.show_json({"keys": rows})
        return
    if not rows:
        output.notify("No API key exists. Next: tllm keys add NAME")
        return
    output.show_table(_COLUMNS, [[_show(row[name]) for name in _COLUMNS] for row in rows])


@keys_app.command()
def revoke(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Key name, as shown by `tllm keys list`.")
    ],
) -> None:
    """Revoke an API key. Running servers reject the key within a second.

    Requests in flight are completed. If no key remains, servers that require a key reject all
    requests.

    Example:  tllm keys revoke alice
    """
    from trtllm_serve_cli.gateway.access.keys import read_keys, revoke_key
    from trtllm_serve_cli.paths import find_home

    file = find_home().keys
    revoke_key(file, name)
    output.notify(f"Revoked {name}.")
    if not read_keys(file):
        output.notify(
            "No API key remains, so the OpenAI-compatible API rejects all requests, unless "
            "authentication is off. Next: create a key with `tllm keys add NAME`, or accept "
            f"requests without a key: `rm {file} && tllm restart`"
        )


def parse_models(lists: Iterable[str]) -> tuple[str, ...]:
    """Return the model names in comma-separated lists.

    Raise `BadInput` if the lists are empty, because a key without models can use all models.
    """
    models = tuple(name for each in lists for part in each.split(",") if (name := part.strip()))
    if not models:
        raise BadInput(
            "--models does not contain a model name.",
            why="a key without models can use all models",
            next_step="pass the names of the models, or omit --models to allow all models",
        )
    return models


def parse_duration(text: str) -> int:
    """Return the number of seconds in a duration such as 30m, 12h or 90d.

    Raise `BadInput` if the duration is not valid.
    """
    number, unit = text[:-1], text[-1:]
    is_short = number.isdecimal() and len(number) <= len(str(_MAX_DURATION))
    if unit not in _UNITS_S or not is_short or int(number) == 0:
        raise BadInput(
            f"{text!r} is not a valid duration.",
            why=f"a duration is a whole number from 1 to {_MAX_DURATION}, followed by m "
            "(minutes), h (hours) or d (days)",
            next_step="pass a duration such as 30m, 12h or 90d",
        )
    return int(number) * _UNITS_S[unit]


_COLUMNS = (
    "name",
    "created",
    "expires",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "models",
)


def _describe(key: Any, now_s: float) -> dict[str, Any]:
    """Return a key's properties as a JSON-compatible dict, without its hash."""
    expires = _show_time(key.expires_at)
    return {
        "name": key.name,
        "created": _show_time(key.created_at),
        "expires": f"{expires} (expired)" if key.is_expired(now_s) else expires,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "concurrency": key.concurrency,
        "models": list(key.models),
    }


def _show_time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value) or "all"
    return "-" if value is None else str(value)
