"""Run a gateway in a forked child, with a fault in one of its file operations.

The gateway serves a fake engine, so it needs no Triton. It checks its key file at each request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import http.client
import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.faults.file_operations import Operation, Place, PlaceFinder, fail, read_operations, watch
from tests.gateway.fakes import FakeBackend
from tests.ports import free_ports
from tests.samples.tensorrt_engines import CHAT_TEMPLATE
from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.client.model_info import ModelInfo
from trtllm_serve_cli.gateway import __main__ as gateway_main
from trtllm_serve_cli.gateway import model_registry
from trtllm_serve_cli.gateway.access import keys
from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.processes import die_with_parent
from trtllm_serve_cli.runtime.pulse import PULSES_VARIABLE

_TIMEOUT_S = 60.0
_REQUEST = json.dumps({"model": "demo", "prompt": "a", "max_tokens": 1})


def write_tokenizer(folder: Path) -> None:
    """Write a small tokenizer that is loaded without Transformers, with sampling defaults."""
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True)
    vocabulary = {"</s>": 0, "a": 1, "b": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text('{"top_p": 0.5}')


class GatewayRun:
    """A gateway in `folder`, which requires the key `key`.

    With `replaces`, remove an existing folder first. `changes` are other fields of the gateway's
    configuration.
    """

    def __init__(self, folder: Path, *, replaces: bool = False, **changes: Any) -> None:
        if replaces:
            shutil.rmtree(folder)
        self.folder = folder
        self.keys_file = folder / "home" / "keys.json"
        self.config_file = folder / "server" / "gateway.json"
        self.tokenizer = folder / "tokenizer"
        for name in ("home", "server/pulses"):
            (folder / name).mkdir(parents=True)
        write_tokenizer(self.tokenizer)
        self.key = keys.add_key(self.keys_file, "alice", now_s=1.0)
        served = ServedModel("demo", "demo", Endpoint(), str(self.tokenizer))
        self._port = free_ports(1)[0]
        config = GatewayConfig(
            (served,),
            **{
                "port": self._port,
                "server_directory": str(folder / "server"),
                "keys_file": str(self.keys_file),
                "drain_s": 1.0,
                **changes,
            },
        )
        self.config_file.write_text(config.to_json())
        self._output, self._record = folder / "output", folder / "operations"
        self._pid = 0
        self._code: int | None = 0

    def start(self, fault: str = "", place: Place | None = None) -> None:
        """Start the gateway, and wait until it serves or has ended."""
        self._record.write_bytes(b"")
        self._code = None
        if (pid := os.fork()) == 0:
            self._run_child(fault, place)
        self._pid = pid
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not self.has_ended() and self.request("", "/ping") is None:
            assert time.monotonic() < deadline_s, self.output
            time.sleep(0.02)

    def wait_until_loaded(self) -> None:
        """Wait until the gateway serves the model, refuses it, or has ended."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not self.has_ended() and self.request("", "/health") == 503:
            assert time.monotonic() < deadline_s, self.output
            time.sleep(0.02)

    def request(self, key: str, path: str = "/v1/completions") -> int | None:
        """Return the status of a request with `key`, or None if the gateway does not respond."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        with contextlib.closing(connection):
            try:
                if path.startswith("/v1"):
                    connection.request("POST", path, _REQUEST, headers)
                else:
                    connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                return None
            return response.status

    def has_ended(self) -> bool:
        """Return whether the gateway has ended."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def stop(self) -> int:
        """Stop the gateway if it is running. Return its exit code or negative signal number."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        if not self.has_ended():
            os.kill(self._pid, signal.SIGTERM)
        while not self.has_ended():
            if time.monotonic() > deadline_s:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.02)
        assert self._code is not None
        return self._code

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def operations(self) -> list[Operation]:
        """The file operations of the latest run."""
        return read_operations(self._record)

    @property
    def files(self) -> set[str]:
        """The paths of the files in the folders that the gateway uses."""
        roots = (self.keys_file.parent, self.config_file.parent, self.tokenizer)
        return {str(path.relative_to(self.folder)) for root in roots for path in root.rglob("*")}

    def _run_child(self, fault: str, place: Place | None) -> NoReturn:
        code = 1
        gc.disable()
        die_with_parent(signal.SIGKILL)
        try:
            written = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(written, 1)
            os.dup2(written, 2)
            sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
            os.environ[PULSES_VARIABLE] = str(self.config_file.parent / "pulses")
            logging.root.handlers.clear()  # log to stderr instead of pytest's handlers
            sys.argv = ["gateway", str(self.config_file)]
            self._patch()
            self._watch(fault, place)
            gateway_main.main()
        except SystemExit as left:
            if isinstance(left.code, str):
                os.write(1, left.code.encode())
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:
            os.write(1, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _patch(self) -> None:
        """Replace Triton with a fake engine, and check the key file at each request."""
        info = ModelInfo(
            "demo", max_seq_len=50, engine_kind="openvino", vocab_size=3,
            tokenizer_dir=str(self.tokenizer), chat_template=CHAT_TEMPLATE,
        )  # fmt: skip

        async def connect_workers(*_: object) -> FakeBackend:
            return FakeBackend()

        # The process ends without undoing these changes.
        patch = pytest.MonkeyPatch()
        patch.setattr(keys, "RELOAD_PERIOD_S", 0.0)
        patch.setattr(model_registry, "fetch_model_config", lambda *_: info)
        patch.setattr(model_registry, "find_worker_socket", lambda *_: "socket")
        patch.setattr(model_registry, "connect_workers", connect_workers)

    def _watch(self, fault: str, place: Place | None) -> None:
        lines = self._record.open("w", buffering=1)
        find_place = PlaceFinder()

        def on_operation(operation: Operation, data: bytes, fd: int) -> None:
            lines.write(json.dumps(dataclasses.asdict(operation)) + "\n")
            if find_place(operation) == place:
                fail(fault, operation, data, fd)

        roots = (self.keys_file.parent, self.config_file.parent, self.tokenizer)
        watch(roots, on_operation)
