"""A program that answers as a Triton does, as far as a supervisor looks; run in a process.

    python fake_server.py HTTP_PORT BEHAVIOUR...

Behaviours: `fail` writes a Triton's log of a model that cannot be loaded, and ends, as does
`misfit` of an engine of another version; `killed` dies while it loads, as one does for which the
memory is too small; `silent` takes requests and never answers; `closed` listens on nothing; `crash`
dies of SIGSEGV when told to by `POST /crash`; `brief` dies once its supervisor has written down
that it is ready; `once` is well in its first life and fails in every other; `stubborn` ignores
SIGTERM; `child` starts a process of its own, `model` one as Triton's Python backend calls it. It
says its pid, and theirs, in its log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOADED = "I1121 09:50:18.469405 25664 model_lifecycle.cc:839] \"successfully loaded 'm'\""
FAILED = (
    "E1121 09:50:22.055697 25727 model_lifecycle.cc:642] \"failed to load 'm' version 1: "
    "Internal: ModuleNotFoundError: No module named 'nowhere'\\n\\nAt:\\n  model.py(1)\\n\""
)
MISFIT = (
    "E0625 02:30:50.697623 128 model_lifecycle.cc:642] \"failed to load 'm' version 1: Internal: "
    "unexpected error when creating modelInstanceState: [TensorRT-LLM][ERROR] Assertion failed: "
    'Failed to deserialize cuda engine. (/app/tensorrt_llm/cpp/runtime/tllmRuntime.cpp:75)"'
)


class Handler(BaseHTTPRequestHandler):
    behaviours: frozenset[str] = frozenset()

    def do_POST(self) -> None:
        if self.path == "/crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        self.rfile.read(int(self.headers["Content-Length"]))
        if "silent" in self.behaviours:
            time.sleep(600)
        event = {"text_output": "one", "num_output_tokens": 1}
        body = f"data: {json.dumps(event)}\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if "brief" in self.behaviours:
            threading.Thread(target=die_when_ready).start()


def die_when_ready() -> None:
    """End once the state says so: the folder of the marks is beside it."""
    state = Path(os.environ["TLLM_DRAINING"]).with_name("state.json")
    while json.loads(state.read_text())["phase"] != "ready":
        time.sleep(0.01)
    os._exit(7)


def main() -> None:
    port, behaviours = int(sys.argv[1]), frozenset(sys.argv[2:])
    print(f"server {os.getpid()}", flush=True)
    print(LOADED, flush=True)
    if "child" in behaviours:
        child = subprocess.Popen((sys.executable, "-c", "import time; time.sleep(600)"))
        print(f"child {child.pid}", flush=True)
    if "model" in behaviours:
        # As Triton's Python backend calls the process of a model.
        stub = Path("triton_python_backend_stub")
        if not stub.exists():
            stub.symlink_to(sys.executable)
        Path("m/1").mkdir(parents=True, exist_ok=True)
        Path("m/1/model.py").write_text("import time; time.sleep(600)")
        model = subprocess.Popen(("./triton_python_backend_stub", "m/1/model.py"))
        print(f"model {model.pid}", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in behaviours else quit_)
    lived_before = Path("lived")
    if "killed" in behaviours:
        os.kill(os.getpid(), signal.SIGKILL)
    if "misfit" in behaviours:
        sys.exit(MISFIT)
    if "fail" in behaviours or ("once" in behaviours and lived_before.exists()):
        sys.exit(FAILED)
    lived_before.touch()
    if "closed" in behaviours:
        time.sleep(600)
    Handler.behaviours = behaviours
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def quit_(*_: object) -> None:
    os._exit(0)


if __name__ == "__main__":
    main()
