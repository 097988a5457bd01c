"""Serve a small checkpoint from a fake hub until stdin is closed, and print the hub's address."""

from __future__ import annotations

import sys

from tests.fakes.hub import FakeHub, serve
from tests.samples.checkpoints import hf_files

REPOSITORY = "acme/tiny"
FILES = hf_files()

if __name__ == "__main__":
    with serve(FakeHub(FILES, REPOSITORY)) as hub:
        print(hub.url, flush=True)
        sys.stdin.read()
