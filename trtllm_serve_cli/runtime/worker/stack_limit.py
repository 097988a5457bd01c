"""Start engine workers with the original stack limit instead of Triton's larger one.

`tllm start` raises the limit for Triton, and child processes inherit the limit. An engine has many
threads. Large stacks could exhaust the address space of processes with a memory limit, such as the
process that compiles grammars.
"""

from __future__ import annotations

import os
import resource

# The environment variable in which `tllm start` stores the original stack limit, in bytes.
VARIABLE = "TLLM_STACK_BYTES"


def restore_stack_limit() -> None:
    """Restore the soft stack limit for processes that this process starts from now on.

    Do nothing if the environment variable `VARIABLE` is not set or is empty. Threads of this
    process are not affected, because glibc reads the limit when a process starts.
    """
    if value := os.environ.get(VARIABLE):
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (int(value), hard))
