"""What the environment of a process says to MPI and CUDA, which read it when they are imported."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

# Who and where this process is in the MPI job that started it. `OMPI_MCA_*` and `PMIX_MCA_*` hold
# the user's settings, which stay; all but the part on the job's own daemons.
_JOB_VARIABLES = ("OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_UNIVERSE_SIZE", "OMPI_FIRST_RANKS",
        "OMPI_APP_CTX_NUM_PROCS", "ORTE_", "PMI_", "PMIX_")  # fmt: skip
_SETTINGS_PREFIX = "PMIX_MCA_"


def leave_mpi_job(environ: MutableMapping[str, str]) -> None:
    """Forget the job that Triton may have been started in: an engine starts one of its own."""
    for name in list(environ):
        if name.startswith(_JOB_VARIABLES) and not name.startswith(_SETTINGS_PREFIX):
            del environ[name]


def choose_gpus(environ: MutableMapping[str, str], numbers: Iterable[str]) -> None:
    """Let this process and those it starts see only these GPUs; all when there are none.

    The numbers count among those that it sees already. Raises `ValueError` for one beyond.
    """
    visible = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    numbers = list(numbers)
    if visible and (invalid := [number for number in numbers if int(number) >= len(visible)]):
        raise ValueError(
            f"gpu_device_ids names GPU {invalid[0]}, and the server sees {len(visible)}: "
            f"{','.join(visible)}"
        )
    if chosen := ",".join(visible[int(number)] if visible else number for number in numbers):
        environ["CUDA_VISIBLE_DEVICES"] = chosen
        # What TensorRT-LLM hands to the processes that MPI starts for it.
        environ["TRTLLM_VISIBLE_DEVICES"] = chosen
