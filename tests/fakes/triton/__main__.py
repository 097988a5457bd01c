"""A fake Triton process, for tests that start, watch and stop servers.

It listens on HTTP, and with `--grpc-port` on gRPC, too; the metrics page is on the HTTP port. It
writes log lines like Triton's and its process id to stdout. Run it from the repository's root:

    python -m tests.fakes.triton 8000 --grpc-port 8001
    tllm infer -m ensemble "go"
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__" and __package__ in (None, ""):
    # The launcher runs this file by path, in the folder and environment of a server.
    sys.path[0] = str(Path(__file__).parents[3])

from tests.fakes.triton.answers import Answer, Outputs, Request, Silence, follow_prompt
from tests.fakes.triton.server import FakeTriton

BEHAVIOURS = {
    "fail": "log that a model failed to load, and exit",
    "misfit": "log that an engine requires another TensorRT version, and exit",
    "killed": "die while loading, as if out of memory",
    "unlockable": "abort while loading, because a mutex cannot be locked",
    "unlockable-once": "the same in the first run only (in the same working folder)",
    "once": "serve in the first run, and `fail` in all later ones (in the same working folder)",
    "closed": "run without listening",
    "silent": "accept requests and never respond",
    "mute": "respond to the first request of each run, and to none of the later ones",
    "crash": "die of SIGSEGV on the prompt `crash`",
    "brief": "exit with code 7 once the phase in the supervisor's state file is `ready`",
    "stubborn": "ignore SIGTERM",
    "linger": "on SIGTERM, end the process of `model`, and keep running",
    "child": "start a process that keeps running, and log its id",
    "model": "start a process like that of a Python model, and log its id",
}

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

UNLOCKABLE = (
    "terminate called after throwing an instance of 'boost::interprocess::lock_exception'\n"
    "  what():  boost::interprocess::lock_exception"
)


def main() -> NoReturn:
    """Load, serve and end with the behaviours of the command line."""
    arguments = parse_arguments()
    behaviours = frozenset(arguments.behaviours)
    print(f"server {os.getpid()}", flush=True)
    print(LOADED, flush=True)
    if "child" in behaviours:
        start_child()
    on_term: signal.Handlers | Callable[..., object] = exit_zero
    if "stubborn" in behaviours:
        on_term = signal.SIG_IGN
    if "model" in behaviours:
        model = start_model()
        if "linger" in behaviours:
            on_term = lambda *_: model.kill()  # noqa: E731
    signal.signal(signal.SIGINT, exit_zero)
    signal.signal(signal.SIGTERM, on_term)
    load_or_die(behaviours)
    if "closed" not in behaviours:
        FakeTriton(answer=choose_answer(behaviours)).start(arguments.http_port, arguments.grpc_port)
    while True:
        # A signal right before `signal.pause` would be handled after the next one.
        time.sleep(0.1)


def parse_arguments() -> argparse.Namespace:
    """Read the command line; exits if a behaviour is unknown."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fakes.triton",
        description=__doc__,
        epilog="behaviours:\n"
        + "\n".join(f"  {name:9} {does}" for name, does in BEHAVIOURS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("http_port", type=int)
    parser.add_argument("behaviours", nargs="*", metavar="behaviour", help="see below")
    parser.add_argument("--grpc-port", type=int)
    arguments = parser.parse_args()
    if unknown := set(arguments.behaviours) - BEHAVIOURS.keys():
        parser.error(f"unknown behaviour: {', '.join(sorted(unknown))}")
    return arguments


def start_child() -> None:
    """Start a process that keeps running after this one has ended."""
    child = subprocess.Popen((sys.executable, "-c", "import time; time.sleep(600)"))
    print(f"child {child.pid}", flush=True)


def start_model() -> subprocess.Popen[bytes]:
    """Start a process with the command line of a model in Triton's Python backend."""
    stub = Path("triton_python_backend_stub")
    if not stub.exists():
        stub.symlink_to(sys.executable)
    Path("m/1").mkdir(parents=True, exist_ok=True)
    Path("m/1/model.py").write_text("import time; time.sleep(600)")
    model = subprocess.Popen(("./triton_python_backend_stub", "m/1/model.py"))
    print(f"model {model.pid}", flush=True)
    return model


def load_or_die(behaviours: frozenset[str]) -> None:
    """Return if the models load."""
    lived_before = Path("lived")
    if "killed" in behaviours:
        os.kill(os.getpid(), signal.SIGKILL)
    if "unlockable" in behaviours or (
        "unlockable-once" in behaviours and not lived_before.exists()
    ):
        lived_before.touch()
        print(UNLOCKABLE, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
    if "misfit" in behaviours:
        sys.exit(MISFIT)
    if "fail" in behaviours or ("once" in behaviours and lived_before.exists()):
        sys.exit(FAILED)
    lived_before.touch()


def choose_answer(behaviours: frozenset[str]) -> Answer:
    """Return the function that answers each request."""

    numbers = itertools.count()

    def answer(request: Request) -> Iterator[Outputs]:
        if "silent" in behaviours:
            raise Silence
        if "mute" in behaviours and next(numbers):
            raise Silence
        if "crash" in behaviours and request.inputs.get("text_input") == "crash":
            signal.raise_signal(signal.SIGSEGV)  # in this thread, which then sends no response
        yield from follow_prompt(request)
        if "brief" in behaviours:
            threading.Thread(target=die_when_ready).start()

    return answer


def die_when_ready() -> NoReturn:
    """Exit once the state is `ready`; its file is next to the folder of drain marks."""
    state = Path(os.environ["TLLM_DRAINING"]).with_name("state.json")
    while json.loads(state.read_text())["phase"] != "ready":
        time.sleep(0.01)
    os._exit(7)


def exit_zero(*_: object) -> NoReturn:
    """Exit with code 0 without waiting for other threads."""
    os._exit(0)


if __name__ == "__main__":
    main()
