"""Change the environment variables that MPI and CUDA read when they are initialized."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

# The prefixes of the variables that describe this process's MPI job. `OMPI_MCA_orte_*` variables
# describe the job's daemons. `PMIX_MCA_*` and all other `OMPI_MCA_*` variables are kept, because
# users set them.
_JOB_VARIABLES = ("OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_UNIVERSE_SIZE", "OMPI_FIRST_RANKS",
        "OMPI_APP_CTX_NUM_PROCS", "ORTE_", "PMI_", "PMIX_")  # fmt: skip
_SETTINGS_PREFIX = "PMIX_MCA_"


def leave_mpi_job(environ: MutableMapping[str, str]) -> None:
    """Remove the environment variables of the MPI job that started Triton.

    An engine starts its own MPI job, so it must not join Triton's job.
    """
    for name in list(environ):
        if name.startswith(_JOB_VARIABLES) and not name.startswith(_SETTINGS_PREFIX):
            del environ[name]


def choose_gpus(environ: MutableMapping[str, str], numbers: Iterable[str]) -> None:
    """Make only the GPUs in `numbers` visible to this process and its children.

    `numbers` contains indices of the currently visible GPUs. If `numbers` is empty, all currently
    visible GPUs stay visible. Raise `ValueError` if an index is not a whole number or is out of
    range for CUDA_VISIBLE_DEVICES.
    """
    visible = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    numbers = list(numbers)
    for number in numbers:
        if not (number.isascii() and number.isdecimal()):
            raise ValueError(
                f"gpu_device_ids contains {number!r}, which is not a GPU index; use whole numbers "
                "starting at 0"
            )
        if visible and int(number) >= len(visible):
            raise ValueError(
                f"gpu_device_ids contains the index {number}, but CUDA_VISIBLE_DEVICES lists only "
                f"{','.join(visible)}; use indices from 0 to {len(visible) - 1}"
            )
    if chosen := ",".join(visible[int(number)] if visible else number for number in numbers):
        environ["CUDA_VISIBLE_DEVICES"] = chosen
        # Also set TRTLLM_VISIBLE_DEVICES, as NVIDIA's Triton model for the LLM API does, because
        # TensorRT-LLM passes only variables with the prefix TRTLLM to its MPI processes.
        environ["TRTLLM_VISIBLE_DEVICES"] = chosen
