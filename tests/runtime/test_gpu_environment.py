"""Changes to the environment in which Triton was started."""

from __future__ import annotations

import pytest

from trtllm_serve_cli.runtime.gpu_environment import choose_gpus, leave_mpi_job


def test_removes_variables_of_the_job_and_keeps_settings() -> None:
    environ = {
        "PATH": "/bin",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_MCA_orte_hnp_uri": "uri",
        "OMPI_MCA_btl": "self",
        "PMIX_RANK": "0",
        "PMIX_MCA_gds": "hash",
        "PMI_SIZE": "2",
    }
    leave_mpi_job(environ)
    assert environ == {"PATH": "/bin", "OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash"}


def test_limits_the_visible_gpus() -> None:
    environ: dict[str, str] = {}
    choose_gpus(environ, ["2", "3"])
    assert environ == {"CUDA_VISIBLE_DEVICES": "2,3", "TRTLLM_VISIBLE_DEVICES": "2,3"}


def test_all_gpus_are_visible_by_default() -> None:
    environ: dict[str, str] = {}
    choose_gpus(environ, [])
    assert environ == {}


def test_numbers_index_the_visible_gpus() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "2,GPU-5"}
    choose_gpus(environ, ["1"])
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-5"
    with pytest.raises(ValueError, match="contains the index 1, but CUDA_VISIBLE_DEVICES lists"):
        choose_gpus(environ, ["1"])


@pytest.mark.parametrize("number", ["-1", "GPU-5", "²"])
@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "2,GPU-5"}])
def test_rejects_a_number_that_is_not_an_index(number: str, environ: dict[str, str]) -> None:
    with pytest.raises(
        ValueError, match=f"gpu_device_ids contains '{number}', which is not a GPU index"
    ):
        choose_gpus(environ, [number])
