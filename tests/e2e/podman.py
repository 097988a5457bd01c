"""Run podman with its own store, and build a test image from files of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

IMAGE = "tllm-test"
PROGRAMS = ("podman", "runc")
# Folders of the wheels that the models and the engine worker import, and of Triton.
_WHEELS = (
    "numpy", "numpy.libs", "openvino", "openvino_genai", "openvino_tokenizers",
    "pytriton", "nvidia_pytriton.libs",
)  # fmt: skip
_LEFT_OUT = ("test", "tests", "__pycache__", "site-packages", "idlelib", "ensurepip", "include")
_OTHER_DEVICES = ("libopenvino_intel_gpu", "libopenvino_intel_npu")
_SYSTEM = ("/lib", "/usr/lib")
# By default, all stores on a machine share their locks.
_CONTAINERS_CONF = """\
[engine]
lock_type = "file"
tmp_dir = "{root}/tmp"
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE_CONF = """\
[storage]
driver = "{driver}"
graphroot = "{root}/graph"
runroot = "{root}/run"
"""
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def skip_reason() -> str:
    """Return the missing programs, or "" if containers may work on this machine."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {' and no '.join(missing)}: apt-get install podman runc" if missing else ""


def use_own_store(root: Path) -> dict[str, str]:
    """Configure podman to store everything in `root`, and return its environment."""
    environ = {
        "CONTAINERS_CONF": str(root / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
    }
    (root / "containers.conf").write_text(_CONTAINERS_CONF.format(root=root))
    for driver in ("overlay", "vfs"):  # vfs copies all files, but works on any file system
        (root / "storage.conf").write_text(_STORAGE_CONF.format(root=root, driver=driver))
        if run_podman("info", environ=environ).returncode == 0:
            break
    return environ


def run_podman(*words: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("podman", *words), env={**os.environ, **environ}, capture_output=True, text=True
    )


def container_skip_reason(environ: Mapping[str, str]) -> str:
    """Return podman's error when it runs a container of `IMAGE`, or "" if it succeeds."""
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
    words = ("run", "--rm", "--net=host", *limits, IMAGE, "python3", "-c", "")
    result = run_podman(*words, environ=environ)
    return result.stderr.strip() if result.returncode else ""


def make_image(
    root: Path,
    environ: Mapping[str, str],
    *,
    wheels: Sequence[str] = _WHEELS,
    added: Mapping[str, Path] | None = None,
) -> None:
    """Import `IMAGE`: Triton in /opt/tritonserver, as in NVIDIA's images, Python and the wheels.

    `added` maps names in the image to other files.
    """
    archive = root / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for source, name in sorted(_list_files(wheels), key=lambda each: each[1]):
            tar.add(source.resolve(), name)
        for name, source in (added or {}).items():
            tar.add(source, name)
        for name, target in _LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
    changes = (
        "ENV PATH=/opt/tritonserver/bin:/usr/local/bin:/usr/bin:/bin",
        "ENV LD_LIBRARY_PATH=/usr/local/lib",
    )
    options = (word for change in changes for word in ("--change", change))
    words = ("import", "--quiet", *options, str(archive), IMAGE)
    run_podman(*words, environ=environ).check_returncode()
    archive.unlink()


_SITE = f"usr/local/lib/python{_VERSION}/site-packages"
_TRITON = f"{_SITE}/pytriton/tritonserver"
_LINKS = {
    "bin/sh": "bash",
    "opt/tritonserver/bin/tritonserver": f"/{_TRITON}/bin/tritonserver",
    **{
        f"opt/tritonserver/backends/python/{name}": f"/{_TRITON}/backends/python/{name}"
        for name in ("libtriton_python.so", "triton_python_backend_utils.py")
    },
    "opt/tritonserver/backends/python/triton_python_backend_stub": f"/{_TRITON}/"
    f"python_backend_stubs/{_VERSION}/triton_python_backend_stub",
}


def _list_files(wheels: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield each file and its name in the image; system libraries that they load come last."""
    files = list(_list_own_files(wheels))
    yield from files
    binaries = [source for source, _ in files if ".so" in source.name or _is_program(source)]
    for library in _find_libraries(binaries):
        yield Path(library), library.lstrip("/")


def _list_own_files(wheels: Sequence[str]) -> Iterator[tuple[Path, str]]:
    purelib = Path(sysconfig.get_paths()["purelib"])
    for wheel in wheels:
        yield from _walk(purelib / wheel, f"{_SITE}/{wheel}")
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    yield from _walk(stdlib, f"usr/local/lib/python{_VERSION}")
    libpython = f"libpython{_VERSION}.so.1.0"
    folders = (Path(sysconfig.get_config_var("LIBDIR")), Path("/usr/lib/x86_64-linux-gnu"))
    found = next((folder / libpython for folder in folders if (folder / libpython).exists()), None)
    if found is not None:
        yield found, f"usr/local/lib/{libpython}"
    yield Path(sys.executable).resolve(), "usr/local/bin/python3"
    yield Path("/bin/bash"), "bin/bash"


def _walk(folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    for path in folder.iterdir():
        if path.is_dir():
            if path.name not in _LEFT_OUT:
                yield from _walk(path, f"{name}/{path.name}")
        elif path.suffix not in (".a", ".pyc") and not path.name.startswith(_OTHER_DEVICES):
            yield path, f"{name}/{path.name}"


def _is_program(path: Path) -> bool:
    return path.name in ("python3", "bash", "tritonserver", "triton_python_backend_stub") or (
        path == Path(sys.executable).resolve()
    )


def _find_libraries(binaries: Iterable[Path]) -> set[str]:
    """Return the system libraries of the binaries, as found by the dynamic linker."""
    result = subprocess.run(
        ("ldd", *map(str, binaries)), capture_output=True, text=True, check=False
    )
    words = set(result.stdout.split())
    return {
        word for word in words if word.startswith(_SYSTEM) and ".so" in word and word[-1] != ":"
    }
