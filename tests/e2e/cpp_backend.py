"""Serve TensorRT engines of any version with the emulator of Triton's C++ backend."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.conftest import Tllm
from tests.samples.tensorrt_engines import engine_config, write_engine
from trtllm_serve_cli.launch.triton.triton_command import backend_links, stub_environ
from trtllm_serve_cli.launch.triton.triton_install import find_libpython, find_triton

EMULATOR = Path(__file__).parents[1] / "fakes" / "cpp_backend" / "model.py"


class EmulatedTllm(Tllm):
    """Runs `tllm` with a `tritonserver` on PATH whose backend `tensorrtllm` is the emulator."""

    @property
    def environ(self) -> dict[str, str]:
        environ = super().environ
        return environ | {"PATH": f"{self.home.parent / 'bin'}:{environ['PATH']}"}


def make_tllm(folder: Path) -> EmulatedTllm:
    """Return a `tllm` with a new home in `folder`, next to the emulated installation of Triton."""
    environ = {name: value for name, value in os.environ.items() if name != "PATH"}
    triton = find_triton({**environ, "PATH": ""})
    for relative, target in backend_links(triton).items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        # Triton rejects a link to the library of a backend that consists of Python code. The stub
        # must be a link, because it finds its own libraries relative to its real path.
        if path.suffix == ".so":
            shutil.copy(target, path)
        else:
            path.symlink_to(target)
    (folder / "backends" / "tensorrtllm").mkdir()
    shutil.copy(EMULATOR, folder / "backends" / "tensorrtllm")
    changes = stub_environ(triton, find_libpython() or "", os.environ)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in changes.items())
    program = folder / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\n{exports}exec {shlex.quote(str(triton.binary))} "
        f'--backend-directory={shlex.quote(str(folder / "backends"))} "$@"\n'
    )
    program.chmod(0o755)
    (folder / "home").mkdir()
    return EmulatedTllm(folder / "home")


def make_engine(
    folder: Path, version: str, *, emulator: Mapping[str, object] | None = None, **build: object
) -> Path:
    """Write an engine of one version for the letters tokenizer, on one GPU.

    `emulator` contains settings of the emulator, which its docstring describes.
    """
    config = engine_config(version, **{"plugin_config": {}, **build})
    config["emulator"] = dict(emulator or {})
    config["pretrained_config"]["vocab_size"] = 257
    # The emulator cannot read the weights of adapters in bfloat16, because NumPy has no such type.
    config["pretrained_config"]["dtype"] = "float16"
    config["pretrained_config"]["mapping"] = {"world_size": 1, "tp_size": 1, "pp_size": 1}
    return write_engine(folder, config, num_ranks=1)


def import_engine(
    tllm: Tllm, name: str, engine: Path, tokenizer: Path, *words: str, unused: Sequence[str] = ()
) -> None:
    """Import the engine as the model `name`.

    Remove the `unused` Triton models, whose processes take CPU time to start, after a check of the
    complete repository.
    """
    tllm.done(
        "import", "-m", name, "-s", f"engine:{engine}", "--param", f"tokenizer_dir={tokenizer}",
        *words,
    )  # fmt: skip
    if unused:
        assert json.loads(tllm.done("validate", name, "--json")) == []
        for model in unused:
            shutil.rmtree(tllm.home / "models" / name / model)
