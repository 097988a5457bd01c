"""Run complete imports, with a build that only writes an engine.json."""

from __future__ import annotations

import dataclasses
import threading

from tests.samples.builds import ENGINE
from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.engine import Engine, find_engine, read_engine, write_engine
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.importer import Display, import_model
from trtllm_serve_cli.importing.sections import ModelSection
from trtllm_serve_cli.paths import Home, write_aside


class Builder:
    """Writes the engine of a plan without building it, and counts the engines it wrote."""

    def __init__(self) -> None:
        self.num_built = 0
        self.is_waiting = False
        self.is_free = threading.Event()
        self.is_free.set()

    def __call__(self, plan: BuildPlan, *, force: bool, notify, on_line) -> Engine:
        if not force and (engine := find_engine(plan.engine_dir, plan.fingerprint)):
            return engine
        self.is_waiting = True
        assert self.is_free.wait(60)
        self.num_built += 1
        made = {"source": plan.checkpoint.source, "fingerprint": plan.fingerprint}
        with write_aside(plan.engine_dir) as work:
            write_engine(dataclasses.replace(ENGINE, **made), work)
        return read_engine(plan.engine_dir)


def run(home: Home, builder: Builder, name: str, source: str | None, *, force=False, **sections):
    declaration = Declaration(ModelSection(name, source), **sections)
    messages: list[str] = []
    display = Display(messages.append, messages.append)
    import_model(declaration, home, force=force, display=display, build=builder)
    return messages
