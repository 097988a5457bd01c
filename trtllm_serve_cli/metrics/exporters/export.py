"""Generate and write configuration files for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from trtllm_serve_cli.choices import MetricsExport
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.metrics.exporters.grafana import make_dashboard
from trtllm_serve_cli.paths import write_text

CONFIG_FILE = "prometheus.yml"
RULES_FILE = "tllm-rules.yml"
DASHBOARD_FILE = "tllm-dashboard.json"
_JOB = "tllm"
# Matches a duration in Prometheus' format, for example 1m30s. Units must be in descending order.
_DURATION = re.compile(r"0|(?=\d)(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")


def plan_export(what: MetricsExport, addresses: Sequence[str], hold: str) -> dict[str, str]:
    """Return the contents of the files to export, keyed by file name.

    `what` selects the files for Prometheus or for Grafana. `addresses` are the servers that
    Prometheus scrapes. `hold` is the time for which an alert's condition must be true before the
    alert fires. Raise `BadInput` if `hold` is not a duration in Prometheus' format.
    """
    if not hold or not _DURATION.fullmatch(hold):
        raise BadInput(
            f"{hold!r} is not a valid Prometheus duration.",
            why="a duration is a sequence of numbers with units (y, w, d, h, m, s or ms) in "
            "descending order",
            next_step="pass a valid duration, for example --for 30s, --for 5m or --for 1h30m",
        )
    if what == "grafana":
        return {DASHBOARD_FILE: json.dumps(make_dashboard(), indent=2) + "\n"}
    return {
        CONFIG_FILE: _as_yaml(make_config(addresses)),
        RULES_FILE: _as_yaml(make_rules(hold)),
    }


def write_export(folder: Path, files: Mapping[str, str], *, force: bool) -> tuple[Path, ...]:
    """Write the files and return their paths.

    Raise `BadInput` if a file exists and `force` is not set, or if a file cannot be written.
    """
    paths = tuple(folder / name for name in files)
    existing = [path for path in paths if path.exists()]
    if existing and not force:
        raise BadInput(
            f"{existing[0]} already exists.",
            why="the file may contain changes that the export would overwrite",
            next_step="pass another folder with -o DIR, or pass --force to replace existing files",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            write_text(path, files[path.name])
    except OSError as error:
        raise BadInput(
            f"The export cannot be written to {folder}.",
            why=error.strerror or str(error),
            next_step="pass another folder with -o DIR",
        ) from error
    return paths


def make_config(addresses: Sequence[str]) -> dict[str, Any]:
    """Return a Prometheus configuration that scrapes `addresses` and loads the rules file."""
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES_FILE],
        "scrape_configs": [{"job_name": _JOB, "static_configs": [{"targets": [*addresses]}]}],
    }


def make_rules(hold: str) -> dict[str, Any]:
    """Return the rules from `rules.yaml`, with the `HOLD` placeholder replaced by `hold`."""
    folder = resources.files("trtllm_serve_cli.metrics.exporters")
    text = folder.joinpath("rules.yaml").read_text("utf-8")
    rules: dict[str, Any] = yaml.safe_load(text)
    for group in rules["groups"]:
        for rule in group["rules"]:
            if rule.get("for") == "HOLD":
                rule["for"] = hold
    return rules


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
