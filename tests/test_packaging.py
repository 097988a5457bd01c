"""The distributions, built from the checkout and installed in a fresh environment."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests import template_cases
from tests.template_cases import find_templates, render_cases

ROOT = Path(__file__).parents[1]


def build(target: str, source: Path, destination: Path) -> Path:
    command = (sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(destination))
    subprocess.run(command, cwd=source, check=True)
    (built,) = destination.iterdir()
    return built


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder / "dist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def fresh_python(unpacked_sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel, which is built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build("wheel", unpacked_sdist, folder / "dist")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env/bin/python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python))
    install = (*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    subprocess.run(install, check=True)
    # The dependencies are those of this environment. A folder that a .pth file names comes last,
    # and its own .pth files, such as that of an editable installation, are not read.
    (site_packages,) = folder.glob("env/lib/python*/site-packages")
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(dependencies)))
    return python


def test_sdist_has_every_template(unpacked_sdist: Path) -> None:
    assert find_templates(unpacked_sdist / "templates") == find_templates(ROOT / "templates")


def test_installed_wheel_renders_every_template(fresh_python: Path, tmp_path: Path) -> None:
    command = (str(fresh_python), "-I", str(template_cases.__file__))
    process = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(process.stdout)
    assert Path(found["package"]).is_relative_to(fresh_python.parents[1])
    assert found["templates"] == find_templates(ROOT / "templates")
    assert found["texts"] == [list(case) for case in render_cases()]


def test_minimum_versions_fix_the_known_advisories() -> None:
    advisories = yaml.safe_load((ROOT / "tests" / "advisories.yaml").read_text())
    minimums = _read_minimums()
    assert set(advisories) <= set(minimums)
    vulnerable = [
        f"{name}>={minimums[name]} admits {advisory['id']}, fixed in {advisory['fixed']}"
        for name, known in advisories.items()
        for advisory in known
        if minimums[name] < Version(str(advisory["fixed"]))
    ]
    assert vulnerable == []


def _read_minimums() -> dict[str, Version]:
    """Return the lowest version of each required package that has one."""
    minimums: dict[str, Version] = {}
    for requirement in map(Requirement, requires("trtllm-serve-cli") or ()):
        for each in requirement.specifier:
            if each.operator == ">=":
                version = Version(each.version)
                name = requirement.name.lower()
                minimums[name] = min(version, minimums.get(name, version))
    return minimums
