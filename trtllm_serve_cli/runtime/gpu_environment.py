"""Environment variables that MPI and CUDA read when they are imported."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

# Prefixes of the variables that describe the MPI job of this process. `OMPI_MCA_*` and `PMIX_MCA_*`
# are kept because they are the user's settings, except `OMPI_MCA_orte_*` (the job's daemons).
_JOB_VARIABLES = ("OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_UNIVERSE_SIZE", "OMPI_FIRST_RANKS",
        "OMPI_APP_CTX_NUM_PROCS", "ORTE_", "PMI_", "PMIX_")  # fmt: skip
_SETTINGS_PREFIX = "PMIX_MCA_"


def leave_mpi_job(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of the MPI job that started Triton, as an engine starts its own job."""
    for name in list(environ):
        if name.startswith(_JOB_VARIABLES) and not name.startswith(_SETTINGS_PREFIX):
            del environ[name]


def choose_gpus(environ: MutableMapping[str, str], numbers: Iterable[str]) -> None:
    """Make only these GPUs visible to this process and its children, or all if `numbers` is empty.

    `numbers` are indices of the currently visible GPUs. Raise `ValueError` if one is too large.
    """
    visible = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    numbers = list(numbers)
    if visible and (invalid := [number for number in numbers if int(number) >= len(visible)]):
        raise ValueError(
            f"gpu_device_ids contains GPU {invalid[0]}, but the server has only {len(visible)} "
            f"visible GPUs: {','.join(visible)}"
        )
    if chosen := ",".join(visible[int(number)] if visible else number for number in numbers):
        environ["CUDA_VISIBLE_DEVICES"] = chosen
        # TensorRT-LLM passes this variable to the processes that MPI starts for it.
        environ["TRTLLM_VISIBLE_DEVICES"] = chosen
