from __future__ import annotations

import pytest

from trtllm_serve_cli.build.installed import find_version, find_versions, has_package


def test_versions_are_those_of_the_environment() -> None:
    assert find_version("pytest") == pytest.__version__
    assert find_version("nowhere") is None
    assert find_versions(("pytest", "nowhere")) == {"pytest": pytest.__version__}


@pytest.mark.parametrize(
    ("name", "is_there"), [("json", True), ("nowhere", False), ("nowhere.inside", False)]
)
def test_package_is_looked_for_without_its_parent(name: str, is_there: bool) -> None:
    assert has_package(name) is is_there
