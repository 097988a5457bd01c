"""Complete imports, with a build that only writes an engine.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importing.running import Builder, run
from tests.samples.builds import ENGINE
from tests.samples.checkpoints import hf_files, write_files
from tests.samples.configs import LLAMA_2_7B
from tests.samples.tensorrt_engines import write_engine as write_tensorrt_engine
from tests.samples.tensorrt_engines import write_tokenizer
from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.engine import Engine, read_engine, write_engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.errors import BadInput, BuildFailed
from trtllm_serve_cli.importing.declaration import Declaration
from trtllm_serve_cli.importing.import_record import find_import
from trtllm_serve_cli.importing.importer import Display, build_model, import_model
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection, RepositorySection
from trtllm_serve_cli.paths import Home, write_aside
from trtllm_serve_cli.repository.model.store import load_model


def test_imported_model_is_found_by_name(home: Home, builder: Builder, gguf: str):
    messages = run(home, builder, "mine", gguf)
    model = load_model(home, "mine")
    assert (model.source, model.engine_path) == (gguf, home.engines / f"mine-{model.fingerprint}")
    assert messages == [
        "Engine kind openvino: it runs on any CPU, and openvino-genai is installed."
    ]


def test_kv_cache_fits_into_the_memory_of_the_machine(home: Home, gguf: str) -> None:
    def build(plan: BuildPlan, **options: object) -> Engine:
        with write_aside(plan.engine_dir) as work:
            write_engine(ENGINE, work)
            cache = 'variable_id="0" variable_type="f32" variable_shape="?,1,?,10000000000"'
            (work / "openvino_model.xml").write_text(f"<data {cache} />")
            (work / "openvino_model.bin").write_bytes(b"")
        return read_engine(plan.engine_dir)

    rendered, _ = import_model(Declaration(ModelSection("mine", gguf)), home, build=build)
    assert rendered.parameters["max_tokens_in_paged_kv_cache"] == "2048"
    assert rendered.parameters["max_seq_len"] == "2048"


def test_completed_stages_are_timed(home: Home, builder: Builder, gguf: str) -> None:
    stages_s: dict[str, float] = {}
    display = Display(on_stage=stages_s.__setitem__)
    _, repository = import_model(
        Declaration(ModelSection("mine", gguf)), home, display=display, build=builder
    )
    assert list(stages_s) == ["checkpoint", "engine", "model repository"]
    assert all(duration_s >= 0 for duration_s in stages_s.values())
    record = find_import(repository)
    assert record is not None
    assert record.stages_s == stages_s


def test_failed_stage_is_not_timed(home: Home, gguf: str) -> None:
    stages_s: dict[str, float] = {}
    display = Display(on_stage=stages_s.__setitem__)

    def fail(plan: BuildPlan, **options: object) -> Engine:
        raise BuildFailed("no")

    with pytest.raises(BuildFailed):
        import_model(Declaration(ModelSection("mine", gguf)), home, display=display, build=fail)
    assert list(stages_s) == ["checkpoint"]


def test_build_renders_nothing(home: Home, builder: Builder, gguf: str) -> None:
    request = Declaration(ModelSection("mine", gguf))
    engine = build_model(request, home, build=builder)
    assert engine.path == home.engines / f"mine-{engine.fingerprint}"
    assert not home.models.exists()


def test_limit_that_exceeds_the_context_is_refused_before_the_build(
    home: Home, builder: Builder, tmp_path: Path
) -> None:
    source = f"local:{write_files(tmp_path / 'hf', hf_files(**LLAMA_2_7B))}"
    with pytest.raises(BadInput, match="--max-seq-len 5000 exceeds the context length of mine"):
        run(home, builder, "mine", source, build=EngineOptions(max_seq_len=5000))
    assert builder.num_built == 0


def test_failed_build_keeps_the_old_repository(home: Home, builder: Builder, gguf: str) -> None:
    def fail(plan: BuildPlan, **_: object) -> Engine:
        raise BadInput("no")

    run(home, builder, "mine", gguf)
    before = load_model(home, "mine")
    with pytest.raises(BadInput):
        import_model(
            Declaration(ModelSection("mine", gguf)),
            home,
            force=True,
            build=fail,
        )
    assert load_model(home, "mine") == before


def test_engine_source_is_rendered_without_a_build(
    home: Home, builder: Builder, tmp_path: Path
) -> None:
    engine = write_tensorrt_engine(tmp_path / "engine")
    served = RepositorySection(parameters={"tokenizer_dir": str(write_tokenizer(tmp_path / "tok"))})
    run(home, builder, "mine", f"engine:{engine}", repository=served)
    model = load_model(home, "mine")
    assert (model.engine_kind, model.engine_path, model.layout) == ("tensorrt", engine, "inflight")
    assert builder.num_built == 0
    run(home, builder, "mine", None, repository=served)


def test_vllm_serves_the_checkpoint_without_a_build(
    home: Home, builder: Builder, tmp_path: Path
) -> None:
    folder = write_files(tmp_path / "hf", hf_files(vocab_size=7, n_positions=64))
    write_tokenizer(folder)
    run(home, builder, "mine", f"local:{folder}", repository=RepositorySection(layout="vllm"))
    model = load_model(home, "mine")
    assert (model.layout, model.engine_path, model.models) == ("vllm", folder, ("mine",))
    assert builder.num_built == 0


def test_vllm_worker_runs_in_the_requested_python(
    home: Home, builder: Builder, tmp_path: Path
) -> None:
    folder = write_files(tmp_path / "hf", hf_files(vocab_size=7, n_positions=64))
    write_tokenizer(folder)
    section = RepositorySection(parameters={"engine_python": "/vllm/bin/python3"})
    run(home, builder, "mine", f"local:{folder}", engine=EngineSection("vllm"), repository=section)
    model = load_model(home, "mine")
    assert (model.engine_kind, model.layout) == ("vllm", "inflight")
    config = (model.path / "tensorrt_llm" / "config.pbtxt").read_text()
    assert 'string_value: "/vllm/bin/python3"' in config
