from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateNotFound, UndefinedError
from tritonclient.grpc import model_config_pb2

from tests.template_cases import CASES, find_templates, render_cases
from trtllm_serve_cli.rendering import quote_pbtxt, quote_shell, render

TEMPLATES = Path(__file__).parents[1] / "templates"


def test_every_template_has_a_case() -> None:
    names = [name for name in find_templates(TEMPLATES) if name.endswith(".j2")]
    assert sorted({name for name, _ in CASES}) == names


def test_comments_of_a_template_are_not_rendered() -> None:
    """Check the first lines, since a shebang must be the first line of its file."""
    first_lines = [(name, text.splitlines()[0]) for name, text in render_cases()]
    token = "TLLM_TOKEN=$(head -c 18 /dev/urandom | base64 | tr '+/' '-_')"
    assert first_lines == [
        ("kubernetes/kubessh.sh.j2", "#!/bin/sh"),
        ("kubernetes/server.sh.j2", token),
        ("kubernetes/server.sh.j2", token),
        (
            "kubernetes/worker.sh.j2",
            """trap 'while grep -qsxE "orted|prted|tritonserver" /proc/[0-9]*/comm; """
            "do sleep 1; done; exit 0' TERM",
        ),
        ("model_repository/config.pbtxt.j2", "# Rendered by tllm 1.2.3 for text in, text out."),
        (
            "model_repository/model.py.j2",
            '"""Rendered by tllm 1.2.3: text in, text out. The code is in tllm_runtime."""',
        ),
        ("report/report.html.j2", "<!DOCTYPE html>"),
        ("slurm/job.sbatch.j2", "#!/bin/bash"),
    ]


def test_only_html_is_escaped() -> None:
    texts = dict(render_cases())
    page = texts["report/report.html.j2"]
    assert "<title>&lt;mine&gt; &amp; yours</title>" in page
    assert "<td>&lt;1</td>" in page
    assert "<svg></svg>" in page
    assert r'value: { string_value: "<s>\303\251" }' in texts["model_repository/config.pbtxt.j2"]


def test_scripts_quote_paths() -> None:
    script = dict(render_cases())["slurm/job.sbatch.j2"]
    assert "\nexec \"${watch[@]}\" '/opt/my triton/tritonserver' \\\n" in script
    assert " && ln -s '/opt/my triton/stub' " in script


def test_missing_variable_raises() -> None:
    with pytest.raises(UndefinedError, match="'version' is undefined"):
        render("model_repository/model.py.j2", model={"title": "mine", "module": "text"})


def test_missing_template_raises() -> None:
    with pytest.raises(TemplateNotFound, match="model_repository/absent"):
        render("model_repository/absent.j2")


@given(st.text())
def test_protobuf_reads_quoted_text_back(text: str) -> None:
    config = text_format.Parse(f"name: {quote_pbtxt(text)}", model_config_pb2.ModelConfig())
    assert config.name == text


@given(st.text())
def test_shell_reads_a_quoted_value_as_one_word(text: str) -> None:
    assert shlex.split(quote_shell(text)) == [text]


def test_jinja2_is_not_imported_before_something_is_rendered() -> None:
    modules = (
        "trtllm_serve_cli.repository.model.render",
        "trtllm_serve_cli.launch.clusters.kubernetes",
        "trtllm_serve_cli.launch.clusters.slurm",
        "trtllm_serve_cli.bench.report.page",
    )
    program = f"import sys, {', '.join(modules)}; sys.exit('jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
