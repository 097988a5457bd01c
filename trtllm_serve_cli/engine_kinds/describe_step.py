"""Write the `engine.json` that describes an engine, as the last build step.

    python -m trtllm_serve_cli.engine_kinds.describe_step DIRECTORY --checkpoint PATH --engine JSON
        [--details JSON]

`--engine` contains the `Engine` fields that are known before the build. The engine kind's
`Building.describe_built` receives `--details`, adds facts from the finished engine, and writes
other files that the server needs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_serve_cli.build.build_plan import BuildRequest, Toolchain
from trtllm_serve_cli.build.build_step import WORK, BuildStep
from trtllm_serve_cli.build.engine import ENGINE_FILE, Engine, write_engine


def plan_describe_step(
    request: BuildRequest,
    tools: Toolchain,
    *,
    title: str,
    weights: str,
    fingerprint: str,
    details: Mapping[str, Any] | None = None,
    outputs: tuple[str, ...] = (),
) -> BuildStep:
    """Return the build step that writes `engine.json`.

    The step passes `details` to the engine kind's `describe_built` function. `outputs` are other
    files that this function must write.
    """
    checkpoint = request.checkpoint
    engine = {
        "kind": request.kind,
        "model_name": request.model_name,
        "source": checkpoint.source,
        "architecture": checkpoint.architecture,
        "weights": weights,
        "fingerprint": fingerprint,
    }
    command: tuple[str, ...] = (
        tools.python, "-m", "trtllm_serve_cli.engine_kinds.describe_step", WORK,
        "--checkpoint", str(checkpoint.path), "--engine", json.dumps(engine),
    )  # fmt: skip
    if details is not None:
        command += ("--details", json.dumps(details))
    return BuildStep(title, command, outputs=(f"{WORK}/{ENGINE_FILE}", *outputs), is_local=True)


def main() -> None:
    """Write `engine.json`.

    Exceptions are not caught, so the build log contains the traceback.
    """
    from trtllm_serve_cli.engine_kinds.registry import find_kind

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--engine", type=json.loads, required=True)
    parser.add_argument("--details", type=json.loads, default={})
    arguments = parser.parse_args()
    describe_built = find_kind(arguments.engine["kind"]).building.describe_built
    assert describe_built is not None
    found = describe_built(arguments.directory, arguments.checkpoint, arguments.details)
    engine = Engine(path=arguments.directory, **{**arguments.engine, **found})
    write_engine(engine, arguments.directory)


if __name__ == "__main__":
    main()
