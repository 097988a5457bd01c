"""Read, compare and restore the files of a TLLM_HOME."""

from __future__ import annotations

import re
import shutil
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

# The durations of a build and the modification times of downloaded files differ between two runs.
_TIMES = re.compile(rb'"took_s": [0-9.e-]+|(?<=, )\d{19}(?=\])')
# Lock files are never removed. The log of a build also contains its interrupted steps. The record
# of an import is optional, and contains durations. CACHEDIR.TAG of huggingface_hub, which only
# backup programs read, may be incomplete.
_IGNORED = ("locks", ".locks", "start.lock", "build.log", "import.json", "CACHEDIR.TAG")
# Temporary files of huggingface_hub, with random names that it never uses again.
_TEMPORARY = re.compile(r".*\.[0-9a-f]{8}\.incomplete|tmp_[0-9a-f-]{36}")
# Folder of the Hugging Face cache in a TLLM_HOME.
CACHE = "cache"
_BLOB = re.compile(f"{CACHE}/[^/]+/blobs/")

Content = Mapping[str, tuple[int, bytes]]


@dataclass(frozen=True)
class Files:
    """The permissions and the content of each file, folder and link, by relative path."""

    content: Content

    @classmethod
    def read(cls, home: Path) -> Files:
        """Read all files in `home` except locks, logs of builds and records of imports."""
        paths = [path.relative_to(home) for path in sorted(home.rglob("*"))]
        kept = [
            path
            for path in paths
            if not any(part in _IGNORED for part in path.parts)
            and not _TEMPORARY.fullmatch(path.name)
        ]
        return cls({str(path): _read(home, path) for path in kept})

    @property
    def used(self) -> Content:
        """The files without the blobs of the Hugging Face cache, to which the snapshots link."""
        return {path: self.content[path] for path in self.content if not _BLOB.match(path)}

    def without(self, paths: Collection[str]) -> Files:
        return Files({path: self.content[path] for path in self.content if path not in paths})

    def units(self) -> dict[str, dict[str, tuple[int, bytes]]]:
        """Group the files by the engine, model repository or server to which they belong.

        A file outside such a folder forms a group by itself, as does a downloaded file.
        """
        units: dict[str, dict[str, tuple[int, bytes]]] = {}
        for path, content in self.content.items():
            parts = Path(path).parts
            if parts[0] in (CACHE, "checkpoints"):
                name = path
            else:
                name = "/".join(parts[: 3 if parts[1:2] == (".used-by",) else 2])
            units.setdefault(name, {})[path] = content
        return units


def find_leftovers(found: Files, before: Files, after: Files) -> list[str]:
    """Return the paths that exist neither before nor after the command."""
    return sorted(found.content.keys() - before.content.keys() - after.content.keys())


def find_partial_units(found: Files, before: Files, after: Files) -> list[str]:
    """Return the units that are neither as before nor as after the command.

    All commands ignore a server without a state, so its files may be incomplete.
    """
    units, old, new = found.units(), before.units(), after.units()
    return [
        name
        for name in old | new
        if units.get(name) not in (old.get(name), new.get(name))
        and not (name.startswith("servers/") and f"{name}/state.json" not in units[name])
    ]


def restore(home: Path, copy: Path) -> None:
    """Replace `home` with a copy of `copy`, or remove `home` if `copy` does not exist."""
    shutil.rmtree(home, ignore_errors=True)
    if copy.exists():
        shutil.copytree(copy, home, symlinks=True)


def _read(home: Path, name: Path) -> tuple[int, bytes]:
    path = home / name
    if name.parts[0] == CACHE and path.is_file():
        # Without permission to create a link, huggingface_hub moves the blob into the snapshot.
        return stat.S_IFREG, path.read_bytes()
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return mode, str(path.readlink()).encode()
    return mode, b"" if stat.S_ISDIR(mode) else _TIMES.sub(b"", path.read_bytes())
