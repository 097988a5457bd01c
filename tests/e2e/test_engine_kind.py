"""An engine kind that consists of one module and one registry entry is imported and served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_ports
from trtllm_serve_cli.client.ask import generate
from trtllm_serve_cli.client.generate import GenerateRequest
from trtllm_serve_cli.engine_kinds import registry
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.importer import import_model
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection
from trtllm_serve_cli.launch.planning.local_plan import plan_for_this_machine
from trtllm_serve_cli.launch.servers.running import RunningServer
from trtllm_serve_cli.launch.supervisor.lifecycle import launch
from trtllm_serve_cli.launch.supervisor.stopping import stop_server
from trtllm_serve_cli.paths import Home

pytestmark = pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, home: Home, letters: Path) -> Iterator[RunningServer]:
    """Serve a model of the engine kind `toy`, which is not part of the package."""
    monkeypatch.setitem(registry.MODULES, "toy", "tests.fakes.toy_kind.kind")
    model = ModelSection("backwards", source=f"local:{letters}")
    import_model(Declaration(model, EngineSection(kind="toy")), home)
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "openai": False}
    plan = plan_for_this_machine(home, ["backwards"], ports)
    server = launch(plan, on_progress=lambda loading: None)
    yield server
    stop_server(server)


def test_custom_engine_kind_is_imported_and_served(server: RunningServer, home: Home) -> None:
    for model in ("ensemble", "tensorrt_llm_bls", "backwards"):
        request = GenerateRequest("stressed", max_tokens=8, stream=True)
        assert generate(server.endpoint, model, request).text == "desserts"
    repository = home.models / "backwards"
    assert json.loads((repository / "tllm.json").read_text())["engine"]["kind"] == "toy"
    engine = repository / "tensorrt_llm" / "1" / "tllm_runtime" / "engines" / "toy"
    assert {path.name for path in engine.glob("*.py")} == {"__init__.py", "kind.py", "engine.py"}
