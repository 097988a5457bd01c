"""A fake hub on loopback, with the part of the API that downloads use."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


@dataclass
class FakeHub:
    """One repository, and the faults of the server; `requests` contains (method, path, Range).

    `xet` also offers the large files in a Xet storage: its address, and the name of each file's
    content in it. With `hold_after_bytes`, a large file stalls there until the server ends, and
    `is_held` is set.
    """

    files: dict[str, bytes]
    repository: str = "acme/tiny"
    url: str = ""
    renamed_from: str = ""
    is_gated: bool = False
    gated_status: int = 401
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after_bytes: int | None = None
    hold_after_bytes: int | None = None
    is_held: threading.Event = field(default_factory=threading.Event)
    has_ended: threading.Event = field(default_factory=threading.Event)
    knows_ranges: bool = True
    xet: tuple[str, dict[str, str]] | None = None
    wrong_sha256: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def downloaded(self) -> list[str]:
        """Return the names of all requested files, with repetitions."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET"]

    def sha256(self, name: str) -> str:
        return "0" * 64 if self.wrong_sha256 else hashlib.sha256(self.files[name]).hexdigest()

    def is_lfs(self, name: str) -> bool:
        return name.endswith((".safetensors", ".bin", ".gguf"))

    def resumed(self) -> list[int]:
        """Return the offsets at which requests resumed a large file."""
        ranges = [each for _, _, each in self.requests if each]
        return [int(each.removeprefix("bytes=").rstrip("-")) for each in ranges]

    def model_info(self) -> dict[str, object]:
        siblings = []
        for name, data in self.files.items():
            sibling = {"rfilename": name, "size": len(data), "blobId": "1" * 40}
            if self.is_lfs(name):
                lfs = {"sha256": self.sha256(name), "size": len(data), "pointerSize": 134}
                sibling["lfs"] = lfs
            siblings.append(sibling)
        return {"id": self.repository, "sha": COMMIT, "siblings": siblings}

    def tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": "1" * 40}
            for name, data in self.files.items()
        ]


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve `hub` until the block ends, and set its `url`."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.has_ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        hub = self.hub
        path = self.path.partition("?")[0]
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status != 200 or hub.body:
            self._send_error(hub.status, None)
        elif hub.renamed_from and f"/{hub.renamed_from}" in path:
            self.send_response(307)
            self.send_header("Location", path.replace(hub.renamed_from, hub.repository))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith(f"/api/models/{hub.repository}"):
            self._answer_api(path.removeprefix(f"/api/models/{hub.repository}"))
        elif path.startswith(files := f"/{hub.repository}/resolve/{COMMIT}/"):
            self._answer_file(path.removeprefix(files))
        else:
            self._send_error(401, "RepoNotFound")

    def _answer_api(self, rest: str) -> None:
        if rest in ("", "/revision/main", f"/revision/{COMMIT}"):
            self._send_json(self.hub.model_info())
        elif rest == f"/tree/{COMMIT}":
            self._send_json(self.hub.tree())
        elif rest == f"/xet-read-token/{COMMIT}" and self.hub.xet:
            self._send_json({"accessToken": "t", "exp": 4_000_000_000, "casUrl": self.hub.xet[0]})
        else:
            self._send_error(404, "RevisionNotFound")

    def _answer_file(self, name: str) -> None:
        hub = self.hub
        if hub.is_gated:
            self._send_error(hub.gated_status, "GatedRepo")
            return
        data, start = hub.files[name], 0
        byte_range = self.headers.get("Range")
        if byte_range and hub.knows_ranges:
            start = int(byte_range.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        etag = hub.sha256(name) if hub.is_lfs(name) else hashlib.sha1(data).hexdigest()
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if hub.is_lfs(name):
            self.send_header("X-Linked-Etag", f'"{etag}"')
            self.send_header("X-Linked-Size", str(len(data)))
        if hub.xet and name in hub.xet[1]:
            self.send_header("X-Xet-Hash", hub.xet[1][name])
            route = f"{hub.url}/api/models/{hub.repository}/xet-read-token/{COMMIT}"
            self.send_header("X-Xet-Refresh-Route", route)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "GET":
            self._send_body(name, data[start:])

    def _send_body(self, name: str, data: bytes) -> None:
        cut, hub = self.hub.cut_after_bytes, self.hub
        if cut is not None and hub.is_lfs(name):
            hub.cut_after_bytes = None
            data = data[:cut]
            self.close_connection = True
        if hub.hold_after_bytes is not None and hub.is_lfs(name):
            self.wfile.write(data[: hub.hold_after_bytes])
            hub.is_held.set()
            hub.has_ended.wait()
            return
        self.wfile.write(data)

    def _send_json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_error(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        for name, value in self.hub.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.hub.body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.hub.body)
