"""Check the files for Prometheus and Grafana, with promtool if promtool is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.metrics.exporters.export import plan_export, write_export

ADDRESSES = ("10.0.0.1:8002", "10.0.0.2:8002")


def rules(hold: str = "5m") -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(plan_export("prometheus", ADDRESSES, hold)["tllm-rules.yml"])["groups"]
    return {each.get("record") or each["alert"]: each for g in groups for each in g["rules"]}


def test_prometheus_scrapes_the_servers() -> None:
    config = yaml.safe_load(plan_export("prometheus", ADDRESSES, "5m")["prometheus.yml"])
    assert config["scrape_configs"] == [
        {"job_name": "tllm", "static_configs": [{"targets": list(ADDRESSES)}]}
    ]
    assert config["rule_files"] == ["tllm-rules.yml"]


def test_alerts_hold_for_the_given_time() -> None:
    held = {name: each["for"] for name, each in rules("30s").items() if "for" in each}
    assert set(held.values()) == {"30s"}
    assert rules("1w2d")["TllmQueueGrowing"]["for"] == "1w2d"
    assert "TllmQueueGrowing" in held and "TllmWorkerRestarted" not in held


def test_every_alert_has_a_description_and_a_severity() -> None:
    for name, each in rules().items():
        if "alert" in each:
            assert each["annotations"]["description"], name
            assert each["labels"]["severity"] in ("critical", "warning", "info")


@pytest.mark.parametrize("hold", ["", "5", "m", "5 m", "1m1h", "-5m"])
def test_rejects_an_invalid_duration(hold: str) -> None:
    with pytest.raises(BadInput, match="is not a valid Prometheus duration"):
        plan_export("prometheus", ADDRESSES, hold)


@pytest.mark.skipif(not shutil.which("promtool"), reason="apt-get install prometheus")
@pytest.mark.parametrize("hold", ["0s", "1h30m", "500ms"])
def test_promtool_accepts_the_files(tmp_path: Path, hold: str) -> None:
    write_export(tmp_path, plan_export("prometheus", ADDRESSES, hold), force=False)
    checked = subprocess.run(
        ("promtool", "check", "config", str(tmp_path / "prometheus.yml")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "21 rules found" in checked.stdout


def test_panels_do_not_overlap_and_have_unique_ids() -> None:
    dashboard = json.loads(plan_export("grafana", (), "5m")["tllm-dashboard.json"])
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_existing_files_are_replaced_only_with_force(tmp_path: Path) -> None:
    files = plan_export("grafana", (), "5m")
    (written,) = write_export(tmp_path / "new", files, force=False)
    written.write_text("mine")
    with pytest.raises(BadInput, match="already exists"):
        write_export(tmp_path / "new", files, force=False)
    assert written.read_text() == "mine"
    write_export(tmp_path / "new", files, force=True)
    assert json.loads(written.read_text())["title"] == "tllm"
    assert list(written.parent.iterdir()) == [written]
