"""Container engines, with shell scripts in the place of docker and podman."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.container_engines import calls_of, write_engine
from trtllm_serve_cli.choices import ContainerEngine
from trtllm_serve_cli.containers.container import Container
from trtllm_serve_cli.containers.container_engine import (
    explain_pull,
    find_container_host,
    find_first_process,
    is_image_here,
    probe_engine,
    pull_image,
    remove_container,
)
from trtllm_serve_cli.errors import MissingPart

DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
NGC = "nvcr.io/nvidia/tritonserver:24.07-trtllm-python-py3"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "bin"


def environ(programs: Path) -> dict[str, str]:
    """Return an environment without other programs: the machine may have container engines."""
    programs.mkdir(exist_ok=True)
    if not (programs / "sh").exists():
        (programs / "sh").symlink_to("/bin/sh")
    return {"PATH": str(programs)}


def test_docker_is_preferred(programs: Path) -> None:
    write_engine(programs, "docker")
    write_engine(programs, "podman")
    host = find_container_host(None, environ(programs))
    assert (host.engine, host.version, host.hard_limits) == ("docker", "27.1.1", {})
    assert find_container_host("podman", environ(programs)).version == "5.2.0"


def test_podman_replaces_a_docker_without_a_daemon(programs: Path) -> None:
    write_engine(programs, "docker", info=f"echo '{DAEMON}' >&2; exit 1")
    write_engine(programs, "podman")
    assert find_container_host(None, environ(programs)).engine == "podman"


@pytest.mark.parametrize(
    ("output", "fix"),
    [
        (DAEMON, "run `sudo systemctl start docker`"),
        (
            "permission denied while trying to connect to the Docker daemon socket",
            'run `sudo usermod -aG docker "$USER"`, then log in again',
        ),
        ("something else", "run `apt-get install podman`"),
    ],
    ids=["daemon", "permission", "other"],
)
def test_error_quotes_engines_that_do_not_work(programs: Path, output: str, fix: str) -> None:
    write_engine(programs, "docker", info=f"echo '{output}' >&2; exit 1")
    with pytest.raises(MissingPart) as raised:
        find_container_host(None, environ(programs))
    assert str(raised.value) == (
        "No container engine works on this machine.\n"
        f"Why: docker: {output}; podman: not installed\n"
        f"Next: {fix}, then run `tllm doctor` to check the engine"
    )


def test_error_names_the_preferred_engine(programs: Path) -> None:
    write_engine(programs, "podman")
    with pytest.raises(MissingPart) as raised:
        find_container_host("docker", environ(programs))
    assert str(raised.value) == (
        "docker does not work on this machine.\nWhy: docker: not installed\n"
        "Next: install or repair docker, or omit --container-engine, then run `tllm doctor` to "
        "check the engine"
    )


def test_silent_engine_is_reported_by_its_exit_code(programs: Path) -> None:
    write_engine(programs, "podman", info="exit 7")
    assert probe_engine("podman", environ(programs)) == "exit code 7"


def test_rootless_docker_runs_as_the_user(programs: Path) -> None:
    write_engine(programs, "docker", info="echo '27.1.1 [\"name=rootless\"]'")
    host = probe_engine("docker", environ(programs))
    assert not isinstance(host, str)
    assert host.runs_as is None


def test_docker_needs_the_runtime_hook_for_gpus(programs: Path) -> None:
    write_engine(programs, "docker")
    assert not find_container_host("docker", environ(programs)).has_gpu_toolkit
    (programs / "nvidia-container-runtime-hook").touch(0o755)
    assert find_container_host("docker", environ(programs)).has_gpu_toolkit


def test_pull_shows_the_output_of_the_engine(programs: Path) -> None:
    program = write_engine(programs, "podman", pull="echo Copying blob; echo done >&2")
    container, shown = Container("podman", "img", "tllm-1"), bytearray()
    assert not is_image_here(container)
    pull_image(container, shown.extend)
    assert (sorted(shown.split(b"\n")), calls_of(program, "pull")) == (
        [b"", b"Copying blob", b"done"],
        ["pull img"],
    )


def test_pull_runs_in_a_terminal(programs: Path) -> None:
    write_engine(programs, "podman", pull="test -t 1 && test -t 2 && stty size < /dev/stdout")
    shown = bytearray()
    container = Container("podman", "img", "tllm-1")
    pull_image(container, shown.extend, os.terminal_size((123, 45)))
    assert shown == b"45 123\r\n"


@pytest.mark.parametrize(
    ("image", "output", "why", "fix"),
    [
        (
            NGC,
            "Error response from daemon: unauthorized: <html>",
            "the registry requires a login or denies access: ",
            "run `docker login nvcr.io` with the user $oauthtoken and an NGC API key",
        ),
        (
            "me/mine:1",
            "denied: requested access to the resource is denied",
            "the registry requires a login or denies access: ",
            "run `docker login docker.io`",
        ),
        (
            NGC,
            "manifest unknown: manifest unknown",
            "the registry does not contain this image: ",
            "pass the name and tag of an existing image with --image",
        ),
        (
            "localhost:5000/mine",
            "dial tcp 127.0.0.1:5000: connect: connection refused",
            "localhost:5000 cannot be reached: ",
            "pull the image on another machine, then copy it with `docker save` and `docker load`",
        ),
        (
            "mine",
            "write /var/lib/docker/tmp: no space left on device",
            "the disk that stores container images is full: ",
            "run `docker system df` to show the disk usage, and `docker image prune` to free space",
        ),
        ("mine", "boom", "", "run `docker pull mine` to show the full output"),
    ],
    ids=["ngc", "private", "unknown", "offline", "disk", "other"],
)
def test_failed_pull_is_explained(image: str, output: str, why: str, fix: str) -> None:
    error = explain_pull(Container("docker", image, "tllm-1"), f"Pulling\n{output}\n")
    assert (error.what, error.why, error.next_step) == (
        f"The image {image} could not be pulled.",
        f"{why}{output}",
        fix,
    )


def test_failed_pull_is_an_error(programs: Path) -> None:
    write_engine(programs, "docker", pull="echo unauthorized >&2; exit 1")
    with pytest.raises(MissingPart, match="The image img could not be pulled"):
        pull_image(Container("docker", "img", "tllm-1"), lambda text: None)


def test_stopped_container_has_no_first_process(programs: Path) -> None:
    container = Container("podman", "img", "tllm-1")
    for answer, pid in (("exit 1", None), ("echo 0", None), ("echo 17", 17)):
        write_engine(programs, "podman", inspect=answer)
        assert find_first_process(container) == pid


@pytest.mark.parametrize(
    ("engine", "command"),
    [("docker", "rm --force tllm-1"), ("podman", "rm --force --time=0 --ignore tllm-1")],
)
def test_container_is_removed_without_a_delay(
    programs: Path, engine: ContainerEngine, command: str
) -> None:
    program = write_engine(programs, engine, rm="exit 1")
    remove_container(Container(engine, "img", "tllm-1"))
    assert calls_of(program, "rm") == [command]
