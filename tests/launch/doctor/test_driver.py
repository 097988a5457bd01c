"""CUDA versions that drivers support."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from trtllm_serve_cli.launch.doctor.driver import MIN_DRIVERS, newest_cuda


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("450.80.01", None),
        ("450.80.02", 11),
        ("525.60.12", 11),
        ("525.60.13", 12),
        ("580.65.05", 12),
        ("580.65.06", 13),
        ("580.126.09", 13),
        ("999", 13),
    ],
)
def test_newest_cuda_by_driver_version(driver: str, cuda: int | None) -> None:
    assert newest_cuda(driver) == cuda


@given(*[st.tuples(*[st.integers(0, 999)] * 3)] * 2)
def test_newer_driver_supports_at_least_as_much(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    old, new = (".".join(map(str, each)) for each in sorted((one, other)))
    assert (newest_cuda(old) or 0) <= (newest_cuda(new) or 0)


def test_invalid_driver_version() -> None:
    with pytest.raises(ValueError, match="not a driver version"):
        newest_cuda("[N/A]")


def test_minimum_drivers_increase_with_cuda() -> None:
    drivers = [Version(MIN_DRIVERS[cuda]) for cuda in sorted(MIN_DRIVERS)]
    assert drivers == sorted(drivers)
