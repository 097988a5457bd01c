"""Choose the number of threads that OpenVINO uses to run a model.

By default, OpenVINO starts one thread per physical core. It respects the CPU affinity of the
process, but not the CPU time limit of a container. If there are more threads than the limit allows,
the container uses up its CPU time early in each period, and the kernel throttles all threads until
the next period (openvinotoolkit/openvino#37838).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from ...cgroup import read_cpu_limit

_CPUS = Path("/sys/devices/system/cpu")


def thread_properties(num_threads: int) -> dict[str, Any]:
    """Return the OpenVINO properties that set the number of threads.

    If `num_threads` is 0, use one thread per physical core that this process may use. If the CPU
    time limit is lower than this number of cores, use the limit instead, rounded up.
    """
    num_threads = num_threads or choose_num_threads(read_cpu_limit(), count_physical_cores())
    if not num_threads:
        return {}
    # Disable pinning. Otherwise, OpenVINO would pin the threads to the first cores. Several engines
    # would then compete for these cores while other cores are idle.
    return {"INFERENCE_NUM_THREADS": num_threads, "ENABLE_CPU_PINNING": False}


def choose_num_threads(cpu_limit: float | None, num_cores: int) -> int:
    """Return the number of threads for a CPU time limit in cores.

    Round the limit up. If the limit is None or not lower than `num_cores`, return 0, which selects
    OpenVINO's default.
    """
    if cpu_limit is None or cpu_limit >= num_cores:
        return 0
    return max(1, math.ceil(cpu_limit))


def count_physical_cores(cpus: Path = _CPUS) -> int:
    """Return the number of physical cores that this process may use.

    Logical processors of the same core have the same list of siblings. A processor whose list
    cannot be read counts as a core.
    """
    cores = set()
    for number in os.sched_getaffinity(0):
        try:
            cores.add((cpus / f"cpu{number}/topology/thread_siblings_list").read_text("utf-8"))
        except OSError:
            cores.add(str(number))
    return len(cores)
