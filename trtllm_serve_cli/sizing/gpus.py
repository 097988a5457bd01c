"""Look up GPU types by name and detect the GPUs in this machine."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from types import MappingProxyType
from typing import Any

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.processes import run_captured

# Maps common short names to GPU types.
_ALIASES = {
    "a100": "a100-80gb",
    "h100": "h100-sxm",
    "h100-80gb": "h100-sxm",
    "v100": "v100-32gb",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "rtx-a6000": "a6000",
    "rtx-pro-6000-blackwell": "rtx-pro-6000",
}
_FIELDS = "index,name,memory.total,mig.mode.current"
_COMMANDS = (
    ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"),
    ("nvidia-smi", "-L"),
)
_TIMEOUT_S = 20.0
_GPU_LINE = re.compile(r"GPU (\d+):")
_MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device")

# Matches an item in CUDA_VISIBLE_DEVICES: an index, or the id of a GPU or MIG device.
_GPU = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU type and its properties.

    - `bandwidth_gb_per_s`: the memory bandwidth.
    - `capability`: the compute capability, for example (9, 0).
    - `fp16`, `fp8`, `fp4`: the dense compute rates in TFLOP/s. `fp8` and `fp4` are `None` if the
      GPU's tensor cores do not support the format. If `has_bf16` is true, `fp16` is also the rate
      for bf16.
    - `nvlink_gb_per_s`: the NVLink bandwidth, or 0 if the GPU does not have NVLink.
    - `shown_as`: the GPU's names in nvidia-smi, without the prefix "NVIDIA ".
    """

    name: str
    memory_mib: int
    bandwidth_gb_per_s: float
    fp16: float
    capability: tuple[int, int]
    fp8: float | None = None
    fp4: float | None = None
    nvlink_gb_per_s: float = 0.0
    shown_as: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20

    @property
    def has_bf16(self) -> bool:
        return self.capability >= (8, 0)


@dataclass(frozen=True, slots=True)
class PresentGpu:
    """A GPU in this machine.

    `mig_devices` contains the profile of each MIG device on the GPU, such as `3g.71gb`.
    """

    index: int
    shown_as: str
    memory_mib: int
    mig_devices: tuple[str, ...] = ()


@functools.cache
def load_gpus() -> Mapping[str, Gpu]:
    """Return all known GPU types, keyed by name."""
    import yaml

    text = resources.files("trtllm_serve_cli.sizing").joinpath("gpus.yaml").read_text("utf-8")
    table = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return MappingProxyType({name: _parse_gpu(name, entry) for name, entry in table.items()})


def load_gpu(name: str) -> Gpu:
    """Return the GPU type with the given name, alias or nvidia-smi name.

    If the name is unknown, raise `BadInput` with similar names, or with all names if no name is
    similar.
    """
    key = _to_key(name)
    for known, gpu in _list_names():
        if _to_key(known) == key:
            return gpu
    near = _list_similar(name)
    raise BadInput(
        f"{name!r} is not a supported GPU.",
        why=f"supported GPUs with similar names: {', '.join(near)}"
        if near
        else f"the supported GPUs are {', '.join(load_gpus())}",
        next_step=f"pass a supported GPU, for example --gpu {near[0] if near else 'h200'}",
    )


def _list_names() -> Iterator[tuple[str, Gpu]]:
    """Yield each name of each GPU type: its name, its aliases and its names in nvidia-smi."""
    gpus = load_gpus()
    yield from gpus.items()
    yield from ((alias, gpus[name]) for alias, name in _ALIASES.items())
    yield from ((shown, gpu) for gpu in gpus.values() for shown in gpu.shown_as)


def _to_key(name: str) -> str:
    """Return the name in lowercase without separators and without "NVIDIA".

    Kubernetes labels nodes with names such as NVIDIA-H100-80GB-HBM3.
    """
    return re.sub(r"[-_\s]", "", name.lower()).removeprefix("nvidia")


def _list_similar(name: str) -> list[str]:
    """Return up to four similar names, starting with GPU types of the same model, such as h100."""
    words = re.split(r"[-_\s]+", name.lower())
    same = [known for known in load_gpus() if known.partition("-")[0] in words]
    names = {_to_key(known): known for known in (*_ALIASES, *load_gpus())}
    near = difflib.get_close_matches(_to_key(name), names, n=4, cutoff=0.5)
    return list(dict.fromkeys((*same, *(names[each] for each in near))))[:4]


def find_card(shown_as: str) -> Gpu | None:
    """Return the GPU type that nvidia-smi shows as `shown_as`, or None if it is unknown."""
    model = shown_as.removeprefix("NVIDIA ")
    return next((gpu for gpu in load_gpus().values() if model in gpu.shown_as), None)


def find_gpus() -> tuple[PresentGpu, ...]:
    """Return the NVIDIA GPUs in this machine.

    Return an empty tuple if nvidia-smi is missing or fails.
    """
    table, listing = (run_captured(command, _TIMEOUT_S) for command in _COMMANDS)
    if table is None or listing is None or table.code != 0 or listing.code != 0:
        return ()
    return parse_gpus(table.out, listing.out)


def find_present_card() -> Gpu | None:
    """Return the type of this machine's first GPU.

    Return None if no GPU is found or if its type is unknown.
    """
    gpus = find_gpus()
    return find_card(gpus[0].shown_as) if gpus else None


def parse_gpus(table: str, listing: str = "") -> tuple[PresentGpu, ...]:
    """Parse nvidia-smi's CSV output in `table` and the output of `nvidia-smi -L` in `listing`.

    Only the MIG devices are read from `listing`. Lines in `table` without a valid index or memory
    size are skipped.
    """
    devices = _parse_mig_devices(listing)
    gpus = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not (cells[0].isdecimal() and cells[2].isdecimal()):
            continue
        index = int(cells[0])
        mig = devices.get(index, ()) if cells[3] == "Enabled" else ()
        gpus.append(PresentGpu(index, cells[1], int(cells[2]), mig))
    return tuple(gpus)


def choose_present(gpus: tuple[PresentGpu, ...]) -> tuple[Gpu, int]:
    """Return the type and the number of the GPUs in this machine.

    The returned memory size is the smallest size that the driver reports. Raise `BadInput` if
    `gpus` is empty, if a GPU has MIG devices or is not in `gpus.yaml`, or if the GPUs have
    different types.
    """
    if not gpus:
        raise BadInput(
            "No NVIDIA GPU was found on this machine.",
            why="nvidia-smi is missing, failed, or did not list a GPU",
            next_step="pass the GPU to plan for, for example --gpu h200",
        )
    if cut := [gpu for gpu in gpus if gpu.mig_devices]:
        raise BadInput(
            f"GPU {cut[0].index} is partitioned into MIG devices.",
            why="the memory bandwidth and compute throughput of the MIG profiles "
            f"{', '.join(cut[0].mig_devices)} are unknown",
            next_step="pass --gpu NAME to plan for a GPU without MIG devices",
        )
    names = sorted({gpu.shown_as for gpu in gpus})
    card = find_card(names[0])
    if len(names) > 1:
        raise BadInput(
            "The GPUs in this machine have different types.",
            why=f"nvidia-smi reports {', '.join(names)}",
            next_step="pass --gpu NAME to plan for GPUs of one type",
        )
    if card is None:
        raise BadInput(
            f"The {names[0]} GPU in this machine is not supported.",
            why=f"the supported GPUs are {', '.join(load_gpus())}",
            next_step="pass --gpu NAME with the most similar GPU",
        )
    return replace(card, memory_mib=min(gpu.memory_mib for gpu in gpus)), len(gpus)


def _parse_gpu(name: str, entry: Mapping[str, Any]) -> Gpu:
    major, minor = str(entry["capability"]).split(".")
    shown_as = tuple(entry["shown_as"])
    return Gpu(name, **{**entry, "capability": (int(major), int(minor)), "shown_as": shown_as})


def _parse_mig_devices(listing: str) -> dict[int, tuple[str, ...]]:
    """Return the MIG profiles, keyed by GPU index.

    In the listing, the lines for MIG devices follow the line of their GPU.
    """
    devices: dict[int, tuple[str, ...]] = {}
    index = -1
    for line in listing.splitlines():
        if match := _GPU_LINE.match(line):
            index = int(match[1])
        elif match := _MIG_LINE.match(line):
            devices[index] = (*devices.get(index, ()), match[1])
    return devices


def parse_gpu_ids(text: str | None) -> tuple[str, ...]:
    """Parse GPUs in CUDA_VISIBLE_DEVICES format: indices, GPU UUIDs or MIG device UUIDs.

    Return an empty tuple if `text` is None or empty. Raise `BadInput` if a GPU is not valid or is
    listed twice.
    """
    gpus = tuple(word.strip() for word in text.split(",")) if text else ()
    for gpu in gpus:
        if not _GPU.fullmatch(gpu):
            raise BadInput(
                f"{gpu!r} is not a valid GPU.",
                why="a GPU must be an index, GPU-<uuid> or MIG-<uuid>",
                next_step="run `nvidia-smi -L` to list the GPUs, then pass, for example, --gpus 0",
            )
    if len(set(gpus)) < len(gpus):
        raise BadInput(f"--gpus {text} lists a GPU twice.", next_step="list each GPU once")
    return gpus
