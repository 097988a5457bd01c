"""Read benchmark results from folders and validate their content."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_serve_cli.bench.model.records import RequestRecord
from trtllm_serve_cli.bench.report.result_json import SCHEMA_VERSION
from trtllm_serve_cli.errors import BadInput

SUMMARY = "summary.json"
REQUESTS = "requests.jsonl"
SAMPLES = "server_samples.jsonl"


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A benchmark result read from a folder.

    `summary`, `records` and `samples` are the contents of `summary.json`, `requests.jsonl` and
    `server_samples.jsonl` in `folder`.
    """

    folder: Path
    summary: Mapping[str, Any]
    records: tuple[RequestRecord, ...]
    samples: tuple[Mapping[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The folder name."""
        return self.folder.resolve().name

    @property
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.summary["settings"]
        return settings

    @property
    def figures(self) -> Mapping[str, Any]:
        """The benchmark's metrics, in the format that `Summary.to_json` returns."""
        figures: Mapping[str, Any] = self.summary["summary"]
        return figures

    @property
    def counted(self) -> tuple[RequestRecord, ...]:
        """All records except for ramp requests, which the metrics exclude."""
        return tuple(record for record in self.records if not record.is_ramp)

    @property
    def streamed(self) -> bool:
        return bool(self.settings["stream"])

    @property
    def load(self) -> str:
        """A short description of the load, for tables and charts."""
        return describe_load(self.settings["load"])

    @property
    def short_load(self) -> str:
        """A minimal description of the load for chart labels, for example `8/s` or `16`."""
        load = self.settings["load"]
        match load["kind"]:
            case "rate":
                return f"{load['request_rate_per_s']:g}/s"
            case "concurrency":
                return str(load["concurrency"])
        return str(load["kind"])

    @property
    def models(self) -> str:
        """The names of the measured models, for titles and tables."""
        return describe_models(self.summary["targets"])

    @property
    def runs(self) -> tuple[tuple[RequestRecord, ...], ...]:
        """The counted records, grouped by run. Runs without counted records are omitted."""
        runs: dict[int, list[RequestRecord]] = {}
        for record in self.counted:
            runs.setdefault(record.run, []).append(record)
        return tuple(tuple(runs[number]) for number in sorted(runs))


def describe_models(targets: Iterable[Mapping[str, Any]]) -> str:
    """Return the names of the models in `targets` from `summary.json`."""
    return ", ".join(dict.fromkeys(map(_name_target, targets)))


def _name_target(target: Mapping[str, Any]) -> str:
    """Return the served model's name, with the imported model's name if it is known and differs."""
    name, imported = str(target["name"]), target.get("imported_model")
    return name if imported in (None, name) else f"{imported} ({name})"


def describe_load(load: Mapping[str, Any]) -> str:
    """Return a short description of `settings.load` from `summary.json`."""
    match load["kind"]:
        case "rate":
            words = f"{load['request_rate_per_s']:g} requests/s"
        case "concurrency":
            return f"{load['concurrency']} in flight"
        case "trace":
            words = "a trace" if load["speed"] == 1 else f"a trace, {load['speed']:g}x"
        case _:
            return "in one burst"
    cap = load.get("concurrency")
    return words if cap is None else f"{words}, at most {cap} in flight"


def read_results(folders: Iterable[Path]) -> list[StoredResult]:
    """Read the results in `folders`.

    Each folder is a result folder, or contains the result folders of a sweep or a search. Raise
    `BadInput` if a folder does not contain a result, or if a result is invalid.
    """
    return [read_result(found) for folder in folders for found in find_results(folder)]


def protect_results(results: Iterable[StoredResult], outputs: Iterable[Path]) -> None:
    """Raise `BadInput` if a path in `outputs` is a file that contains one of the results."""
    files = {
        (result.folder / name).resolve()
        for result in results
        for name in (SUMMARY, REQUESTS, SAMPLES)
    }
    for path in outputs:
        if path.resolve() in files:
            raise BadInput(
                f"{path} is a file of a benchmark result.",
                why="the output would replace the measurements",
                next_step="choose another output file",
            )


def find_results(folder: Path) -> list[Path]:
    """Return the result folders in `folder`, or `folder` itself if it is a result folder.

    Hidden folders are ignored. The result folders are in natural sort order, for example `rate-8`
    before `rate-16`. Raise `BadInput` if `folder` does not contain a result.
    """
    if (folder / SUMMARY).is_file():
        return [folder]
    within = [each.parent for each in folder.glob(f"*/{SUMMARY}")]
    visible = [each for each in within if not each.name.startswith(".")]
    if not visible:
        raise _no_result(folder)
    return sorted(visible, key=_in_counting_order)


def _no_result(folder: Path) -> BadInput:
    if folder.is_dir():
        why = "neither the folder nor its subfolders contain summary.json"
    else:
        why = "the path is not a folder" if folder.exists() else "the folder does not exist"
    # A result cannot be written to an existing path, unless the path is an empty folder.
    place = "DIR" if folder.exists() else shlex.quote(str(folder))
    return BadInput(
        f"{folder} is not a benchmark result.",
        why=why,
        next_step="pass a result folder, or run `tllm bench token-norm-dist --stream "
        f"--output {place}` to create a result",
    )


def _in_counting_order(folder: Path) -> list[tuple[float, str]]:
    """Return a key for natural sort order, so that `rate-8` precedes `rate-16`."""
    parts = re.split(r"(\d+(?:\.\d+)?)", folder.name)
    return [(float(part), "") if number % 2 else (-1.0, part) for number, part in enumerate(parts)]


def read_result(folder: Path) -> StoredResult:
    """Read the result in `folder`.

    Raise `BadInput` if a file cannot be read or is invalid. The error names the file and, if known,
    the line.
    """
    summary = _read_summary(folder / SUMMARY)
    records = tuple(_read_records(folder / REQUESTS))
    samples = tuple(_read_lines(folder / SAMPLES)) if (folder / SAMPLES).exists() else ()
    return StoredResult(folder, summary, records, samples)


def _read_summary(file: Path) -> dict[str, Any]:
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    found = summary.get("schema_version") if isinstance(summary, dict) else None
    if found is None:
        raise _refuse(
            f"{file} is not the summary of a benchmark result.",
            "the file does not set schema_version",
        )
    if found != SCHEMA_VERSION:
        raise _refuse(
            f"{file} has an unsupported version.",
            f"schema_version is {found!r}, but this version of tllm requires {SCHEMA_VERSION}",
        )
    missing = [name for name in ("settings", "summary", "targets", "client") if name not in summary]
    if missing:
        raise _refuse(f"{file} is incomplete.", f"the file does not contain {', '.join(missing)}")
    whole: dict[str, Any] = summary
    return whole


def _read_records(file: Path) -> Iterator[RequestRecord]:
    for number, line in enumerate(_read_lines(file), 1):
        try:
            yield RequestRecord.from_json(line)
        except (KeyError, TypeError) as error:
            why = (
                f"the {error} field is missing"
                if isinstance(error, KeyError)
                else "a field is missing, unknown or of the wrong type"
            )
            raise _refuse(f"Line {number} of {file} is not a request record.", why) from error


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        # `str.splitlines` would also split at Unicode line separators, which error messages may
        # contain.
        with file.open(encoding="utf-8") as stream:
            lines = stream.readlines()
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise _refuse(f"Line {number} of {file} is not valid JSON.", str(error)) from error
        if not isinstance(value, dict):
            raise _refuse(
                f"Line {number} of {file} is not a record.", "the line is not a JSON object"
            )
        yield value


def _unreadable(file: Path, error: OSError | ValueError) -> BadInput:
    return _refuse(f"{file} cannot be read.", getattr(error, "strerror", None) or str(error))


def _refuse(what: str, why: str) -> BadInput:
    return BadInput(
        what,
        why=why,
        next_step="run the benchmark again with `--output DIR` to create a new result",
    )
