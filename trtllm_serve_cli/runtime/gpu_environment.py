"""Environment variables that MPI and CUDA read when they are imported."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

# Variables that describe the MPI job of this process. `OMPI_MCA_*` and `PMIX_MCA_*` are settings of
# the user and stay, except those that refer to the job's daemons (`OMPI_MCA_orte_*`).
_JOB_VARIABLES = ("OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_UNIVERSE_SIZE", "OMPI_FIRST_RANKS",
        "OMPI_APP_CTX_NUM_PROCS", "ORTE_", "PMI_", "PMIX_")  # fmt: skip
_SETTINGS_PREFIX = "PMIX_MCA_"


def leave_mpi_job(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of the MPI job that started Triton: an engine starts its own job."""
    for name in list(environ):
        if name.startswith(_JOB_VARIABLES) and not name.startswith(_SETTINGS_PREFIX):
            del environ[name]


def choose_gpus(environ: MutableMapping[str, str], numbers: Iterable[str]) -> None:
    """Make only these GPUs visible to this process and its children, or all if `numbers` is empty.

    The numbers index the GPUs that are visible now. Raise `ValueError` for an invalid number.
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
