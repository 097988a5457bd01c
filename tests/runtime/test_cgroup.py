"""The limits of control groups, in both versions and in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples.checkpoints import write_files
from trtllm_serve_cli.runtime.cgroup import read_cpu_limit, read_memory_limit

CONTAINER = "0::/\n"
NESTED = "0::/kubepods/pod1/c1\n"
VERSION_1 = "4:memory:/docker/c1\n3:cpu,cpuacct:/docker/c1\n2:cpuset:/\n0::/docker/c1\n"


@pytest.mark.parametrize(
    ("own", "files", "cores", "num_bytes"),
    [
        (CONTAINER, {"cpu.max": "150000 100000\n", "memory.max": "2048\n"}, 1.5, 2048),
        (CONTAINER, {"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, None),
        (
            NESTED,
            {
                "kubepods/cpu.max": "800000 100000",
                "kubepods/pod1/cpu.max": "200000 100000",
                "kubepods/pod1/c1/cpu.max": "max 100000",
                "kubepods/memory.max": "4096",
                "kubepods/pod1/c1/memory.max": "max",
            },
            2.0,
            4096,
        ),
        (
            VERSION_1,
            {
                "cpu/docker/c1/cpu.cfs_quota_us": "50000",
                "cpu/docker/c1/cpu.cfs_period_us": "100000",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/docker/c1/memory.limit_in_bytes": "1024",
            },
            0.5,
            1024,
        ),
        # The container's own folders are at the root, but their paths are those on the host.
        (
            VERSION_1,
            {
                "cpu/cpu.cfs_quota_us": "300000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "512",
            },
            3.0,
            512,
        ),
        ("", {"cpu.max": "100000 100000", "memory.max": "1"}, None, None),
        (CONTAINER, {"cpu.max": "many", "memory.max": ""}, None, None),
    ],
    ids=["version 2", "no limits", "parents", "version 1", "host paths", "no groups", "not valid"],
)
def test_limits_of_groups_and_their_parents(
    tmp_path: Path, own: str, files: dict[str, str], cores: float | None, num_bytes: int | None
) -> None:
    mount = tmp_path / "mount"
    write_files(mount, {name: text.encode() for name, text in files.items()})
    (tmp_path / "own").write_text(own)
    assert read_cpu_limit(tmp_path / "own", mount) == cores
    assert read_memory_limit(tmp_path / "own", mount) == num_bytes


def test_systems_without_groups_have_no_limits(tmp_path: Path) -> None:
    assert read_cpu_limit(tmp_path / "none", tmp_path) is None
    assert read_memory_limit(tmp_path / "none", tmp_path) is None
