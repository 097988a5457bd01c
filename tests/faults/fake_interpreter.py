"""A fake of the Python interpreter that a command starts, which ends within milliseconds.

    fake_interpreter.py ENGINE_JSON -m MODULE ARGUMENT...

The steps of a build write an engine like ENGINE_JSON. The supervisor reports a ready server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

engine_json, _, module, *arguments = sys.argv[1:]
match module.rpartition(".")[2]:
    case "gguf_step":
        for name in ("tokenizer", "detokenizer"):
            Path(arguments[1], f"openvino_{name}.xml").write_text("<net/>")
    case "describe_step":
        work, options = Path(arguments[0]), dict(zip(arguments[1::2], arguments[2::2], strict=True))
        engine = json.loads(Path(engine_json).read_text()) | json.loads(options["--engine"])
        (work / "engine.json").write_text(json.dumps(engine))
        (work / "simulation.json").write_text(options["--details"])
    case "supervisor":
        state = {"phase": "ready", "supervisor_pid": 0, "supervisor_started_at": 0.0, "why": []}
        Path(arguments[0], "state.json").write_text(json.dumps(state))
    case _:
        raise SystemExit(f"unexpected module {module}")
