from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateNotFound, UndefinedError
from tritonclient.grpc import model_config_pb2

from trtllm_serve_cli.rendering import quote_pbtxt, quote_shell, render


def test_missing_variable_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'version' is undefined"):
        render("model_repository/model.py.j2", model={"title": "mine", "module": "text"})


def test_missing_template_is_an_error() -> None:
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
