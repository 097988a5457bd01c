"""The paths that Triton's Python stub can use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.triton.stub_paths import check_paths, is_usable

HOME = Path("/srv/tllm")


@pytest.mark.parametrize("name", ["with space", "josé", "it's", "a;b", "$HOME", "a(1)"])
def test_unusable_folders_are_refused(name: str) -> None:
    for setting, paths in (("TLLM_HOME", (HOME / name, [])), ("--repo", (HOME, [HOME / name]))):
        with pytest.raises(BadInput, match="Triton cannot use the folder") as raised:
            check_paths(*paths, [])
        assert raised.value.next_step == (
            f"set {setting} to a folder whose path contains only ASCII letters, digits and the "
            "characters ./_-"
        )


def test_engine_may_have_a_space_but_must_be_ascii() -> None:
    check_paths(HOME / "servers", [HOME / "models" / "a-1.5_b~"], [Path("/data/my engine")])
    with pytest.raises(BadInput, match="Triton cannot use the folder /data/schön") as raised:
        check_paths(HOME, [], [Path("/data/schön")])
    assert raised.value.why == "Triton's Python backend supports only ASCII paths"


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=8))
def test_a_shell_reads_usable_paths_as_one_unchanged_word(name: str) -> None:
    path = Path(f"/x/{name}")
    if is_usable(path):
        echoed = subprocess.run(("sh", "-c", f"echo {path}"), capture_output=True, check=True)
        assert echoed.stdout.decode() == f"{path}\n"
