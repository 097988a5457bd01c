"""`tllm list --engines`: list the engines in the engine store and the partial builds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trtllm_serve_cli.cli.shared import output

if TYPE_CHECKING:
    from pathlib import Path

    from trtllm_serve_cli.build.partial_build import PartialBuild
    from trtllm_serve_cli.build.store import StoredEngine
    from trtllm_serve_cli.paths import Home


def list_engines(*, as_json: bool) -> None:
    """Print the stored engines, the repositories that use each engine, and the partial builds."""
    from trtllm_serve_cli.build import store
    from trtllm_serve_cli.build.partial_build import list_partial_builds
    from trtllm_serve_cli.engine_kinds.dispatch import load_engine
    from trtllm_serve_cli.paths import find_home
    from trtllm_serve_cli.repository.settings.engine_references import find_users
    from trtllm_serve_cli.sources.disk_space import show_size

    home = find_home()
    users = find_users(home)
    stored = store.list_engines(home.engines, read=load_engine)
    rows = [_describe(each, users.get(each.path, [])) for each in stored]
    rows += [_describe_unfinished(build) for build in list_partial_builds(home.engines)]
    if as_json:
        output.show_json(rows)
        return
    if not rows:
        output.notify("No engine has been built yet. Next: tllm import -m demo")
        return
    output.show_table(
        ("engine", "kind", "options", "size", "age", "used by"),
        [
            (
                row["name"],
                row["engine"] or "?",
                _show_options(row),
                show_size(row["size_bytes"]),
                show_age(time.time() - row["created_at"]),
                _show_users(home, row),
            )
            for row in rows
        ],
        is_first_column_whole=True,
    )
    if any(row["state"] != "in use" for row in rows):
        output.notify(
            "Next: run `tllm remove --engines` to delete unused engines and partial builds"
        )


def show_user(home: Home, repository: Path) -> str:
    """Return the imported model's name, or the repository's path if it is outside TLLM_HOME."""
    return repository.name if repository.parent == home.models else str(repository)


def show_age(seconds: float) -> str:
    """Return a duration in its largest unit, such as "2 hours", or "just now" if under a minute."""
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if (count := int(seconds / size)) >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "just now"


def _describe(each: StoredEngine, users: list[Path]) -> dict[str, Any]:
    from trtllm_serve_cli.build.engine import ENGINE_FILE

    engine, build_record = each.engine, each.build_record
    changed_at = int((each.path / ENGINE_FILE).stat().st_mtime)
    return {
        "name": each.path.name,
        "path": str(each.path),
        "state": "in use" if users else "unused" if engine else "broken",
        "engine": engine.kind if engine else None,
        "weights": engine.weights if engine else None,
        "source": engine.source if engine else None,
        "fingerprint": engine.fingerprint if engine else None,
        "facts": build_record.facts if build_record else None,
        "size_bytes": each.num_bytes,
        "created_at": build_record.started_at if build_record else changed_at,
        "used_by": [str(path) for path in users],
    }


def _describe_unfinished(build: PartialBuild) -> dict[str, Any]:
    from trtllm_serve_cli.paths import find_size

    return {
        "name": build.engine_dir.name,
        "path": str(build.path),
        "state": f"not done, {len(build.finished)} steps kept",
        "engine": None,
        "weights": None,
        "source": None,
        "fingerprint": build.fingerprint,
        "facts": None,
        "size_bytes": find_size(build.path),
        "created_at": int(build.path.stat().st_mtime),
        "used_by": [],
    }


def _show_options(row: dict[str, Any]) -> str:
    """Return the engine's weight format and build options as text."""
    options = dict((row["facts"] or {}).get("options") or {})
    options.update(options.pop("flags", {}))
    chosen = [f"{name}={value}" for name, value in options.items()]
    return " ".join([row["weights"] or "", *chosen]).strip()


def _show_users(home: Home, row: dict[str, Any]) -> str:
    from pathlib import Path

    users = ", ".join(show_user(home, Path(path)) for path in row["used_by"])
    return users or f"({row['state']})"
