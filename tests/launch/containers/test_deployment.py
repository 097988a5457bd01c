"""Requirements of imported models on other machines."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.samples.builds import ENGINE, SIM
from tests.samples.tensorrt_engines import (
    engine_config,
    tensorrt_engine,
    write_engine,
    write_tokenizer,
)
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.choices import Layout
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.engine_kinds.tensorrt.built_engine import describe_source
from trtllm_serve_cli.errors import BadInput, RepositoryError
from trtllm_serve_cli.launch.containers.deployment import (
    Deployable,
    check_image,
    describe_deployable,
    split_evenly,
)
from trtllm_serve_cli.repository.model.model_repository import open_repository
from trtllm_serve_cli.repository.model.render import write_repository
from trtllm_serve_cli.repository.model.store import read_manifest
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

NGC = "nvcr.io/nvidia/tritonserver"


def deployable(
    folder: Path, engine: Engine, *, layout: Layout = "inflight", **parameters: str
) -> Deployable:
    options = ServingOptions(parameters=parameters, layout=layout)
    write_repository(plan_repository("mine", engine, options), folder / "repository")
    return describe_deployable(
        read_manifest(folder / "repository"), open_repository(folder / "repository")
    )


def engine_of(folder: Path, **facts: Any) -> Engine:
    (folder / "engine").mkdir()
    return dataclasses.replace(ENGINE, path=folder / "engine", **facts)


@pytest.mark.whole_runtime
def test_cpu_engine_needs_no_gpu_and_has_no_image(tmp_path: Path) -> None:
    model = deployable(tmp_path, engine_of(tmp_path))
    assert model == Deployable(
        name="mine",
        text_model="mine",
        kind="openvino",
        models=model.models,
        repository=tmp_path / "repository",
        folders=(tmp_path / "repository", tmp_path / "engine"),
        num_gpus=0,
        num_ranks=1,
        image=None,
        needs="Triton and openvino-genai",
        reports_waiting=True,
        runtime=tmp_path / "repository" / "preprocessing" / "1",
    )
    with pytest.raises(BadInput) as raised:
        check_image(model, None)
    assert str(raised.value) == (
        "No public container image can serve mine.\n"
        "Why: no known image from NVIDIA contains Triton and openvino-genai\n"
        "Next: build an image that contains this software, and pass it with --image IMAGE"
    )
    assert check_image(model, "mine:1") == "mine:1"


def test_repository_of_an_earlier_version_cannot_watch_the_server(tmp_path: Path) -> None:
    repository = deployable(tmp_path, engine_of(tmp_path)).repository
    for folder in repository.glob("*/1/tllm_runtime/watch"):
        shutil.rmtree(folder)
    model = describe_deployable(read_manifest(repository), open_repository(repository))
    assert model.runtime is None


@pytest.mark.whole_runtime
def test_only_engines_in_triton_backends_need_tokens(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    tensorrt = deployable(tmp_path, tensorrt_engine(tmp_path))
    worker = deployable(tmp_path / "worker", engine_of(tmp_path / "worker"))
    assert (tensorrt.needs_tokens, worker.needs_tokens) == (True, False)
    assert tensorrt.runtime is not None


def test_simulated_engine_needs_the_package_of_its_tokenizer(tmp_path: Path) -> None:
    model = deployable(tmp_path, dataclasses.replace(SIM, path=engine_of(tmp_path).path))
    assert (model.image, model.needs, model.num_gpus) == (None, "Triton and Transformers", 0)
    (tmp_path / "engine" / "openvino_tokenizer.xml").touch()
    again = describe_deployable(read_manifest(model.repository), open_repository(model.repository))
    assert again.needs == "Triton and openvino-genai"


def test_tensorrt_engine_has_a_rank_per_gpu_and_the_image_of_its_version(tmp_path: Path) -> None:
    model = deployable(tmp_path, tensorrt_engine(tmp_path))
    assert (model.num_gpus, model.num_ranks, model.is_llm_api) == (2, 2, False)
    assert (model.image, model.reports_waiting) == (f"{NGC}:26.02-trtllm-python-py3", True)


@pytest.mark.parametrize(
    ("version", "needs"),
    [
        (None, "the engine's TensorRT-LLM version (unknown)"),
        ("0.17.0rc1", "Triton's TensorRT-LLM 0.17.0rc1 backend"),
    ],
)
def test_engine_without_a_known_container_accepts_an_image(
    tmp_path: Path, version: str | None, needs: str
) -> None:
    model = deployable(tmp_path, tensorrt_engine(tmp_path))
    config = engine_config()
    config.pop("version")
    config |= {"version": version} if version else {}
    (tmp_path / "engine" / "config.json").write_text(json.dumps(config))
    again = describe_deployable(read_manifest(model.repository), open_repository(model.repository))
    assert (again.image, again.needs, again.reports_waiting) == (None, needs, False)
    with pytest.raises(BadInput, match="and pass it with --container-image IMAGE"):
        check_image(again, None, "--container-image")
    assert check_image(again, "mine:1") == "mine:1"


def test_declared_version_selects_the_image(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, kind="pytorch", llm_arguments={})
    repository = deployable(tmp_path, engine).repository

    def with_version(version: str) -> Deployable:
        model = dataclasses.replace(
            read_manifest(repository), declaration={"engine": {"trtllm_version": version}}
        )
        return describe_deployable(model, open_repository(repository))

    assert with_version("1.0.0").image == f"{NGC}:25.10-trtllm-python-py3"
    assert with_version("25.11").image == f"{NGC}:25.11-trtllm-python-py3"
    assert (with_version("1.3.0rc2").image, with_version("1.3.0rc2").needs) == (
        None,
        "Triton and TensorRT-LLM 1.3.0rc2",
    )


def test_old_engines_report_no_waiting_requests(tmp_path: Path) -> None:
    model = deployable(tmp_path, tensorrt_engine(tmp_path))
    (tmp_path / "engine" / "config.json").write_text(
        json.dumps({**engine_config(), "version": "0.17.0"})
    )
    again = describe_deployable(read_manifest(model.repository), open_repository(model.repository))
    assert (again.image, again.reports_waiting) == (f"{NGC}:25.01-trtllm-python-py3", False)


def test_llm_api_counts_ranks_from_its_arguments(tmp_path: Path) -> None:
    arguments = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    model = deployable(tmp_path, engine_of(tmp_path, kind="pytorch", llm_arguments=arguments))
    assert (model.num_gpus, model.num_ranks, model.is_llm_api) == (8, 8, True)
    assert model.image == f"{NGC}:26.07-trtllm-python-py3"


@pytest.mark.parametrize("layout", ["inflight", "llmapi"])
def test_llm_api_counts_ranks_from_its_repository(tmp_path: Path, layout: Any) -> None:
    engine = engine_of(tmp_path, kind="pytorch", llm_arguments={"tensor_parallel_size": 1})
    parameters = {"llm_args": '{"tensor_parallel_size": 4, "context_parallel_size": 2}'}
    options = ServingOptions(parameters=parameters, layout=layout)
    write_repository(plan_repository("mine", engine, options), path := tmp_path / "repository")
    model = describe_deployable(read_manifest(path), open_repository(path))
    assert (model.num_gpus, model.num_ranks) == (8, 8)
    place = "1/model.yaml" if layout == "llmapi" else "config.pbtxt"
    file = path / "tensorrt_llm" / place
    file.write_text(file.read_text().replace(": 4", ": 4x"))
    with pytest.raises(RepositoryError, match=f"The number of GPUs cannot be read from .*{place}"):
        describe_deployable(read_manifest(path), open_repository(path))


def test_instances_use_the_gpus_of_gpu_device_ids(tmp_path: Path) -> None:
    """Device ids count from the first GPU, as in `tllm start --mode mpi`."""
    engine = tensorrt_engine(tmp_path)
    model = deployable(tmp_path, engine, gpu_device_ids="0,1;2,3")
    assert (model.num_gpus, model.num_ranks, model.spawns) == (4, 1, True)
    one = deployable(tmp_path / "one", engine, gpu_device_ids="2,3")
    assert (one.num_gpus, one.num_ranks, one.spawns) == (4, 2, False)
    with pytest.raises(
        BadInput, match="gpu_device_ids of tensorrt_llm does not match the model's engine"
    ):
        deployable(tmp_path / "odd", engine, gpu_device_ids="0;1")


@pytest.mark.parametrize(
    ("num_ranks", "draft_gpus", "expected"),
    [(1, "1", (2, 1, False)), (1, "", (1, 1, False)), (2, "2,3", (4, 1, True))],
    ids=["two GPUs", "one GPU", "ranks"],
)
def test_draft_model_has_its_own_engine(
    tmp_path: Path, num_ranks: int, draft_gpus: str, expected: tuple[int, int, bool]
) -> None:
    """Engines without ranks do not need an orchestrator to run in the same server."""
    build = {"plugin_config": {"use_paged_context_fmha": True}, "max_draft_len": 5}
    config = engine_config(**build)
    config["pretrained_config"]["mapping"] = {"world_size": num_ranks}
    folders = [write_engine(tmp_path / name, config, num_ranks) for name in ("target", "draft")]
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    engine = describe_source("mine", folders[0], tokenizer, f"engine:{folders[0]}")
    model = deployable(
        tmp_path, engine, tokenizer_dir=str(tokenizer), draft_engine_dir=str(folders[1]),
        draft_gpu_device_ids=draft_gpus,
    )  # fmt: skip
    assert (model.num_gpus, model.num_ranks, model.spawns) == expected
    assert set(folders) <= set(model.folders)


def test_instances_of_the_llm_api_start_their_own_processes(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, kind="pytorch", llm_arguments={"tensor_parallel_size": 2})
    model = deployable(tmp_path, engine, gpu_device_ids="0,1;2,3")
    assert (model.num_gpus, model.num_ranks, model.is_llm_api) == (4, 1, False)


def test_vllm_is_one_process_with_its_gpus(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, kind="vllm")
    model = deployable(tmp_path, engine, layout="vllm", tensor_parallel_size="2")
    assert (model.num_gpus, model.num_ranks, model.models) == (2, 1, ("mine",))
    assert (model.image, model.reports_waiting) == (f"{NGC}:26.07-vllm-python-py3", False)


@pytest.mark.parametrize(("gpus", "number"), [("0", 1), ("0;1", 2)])
def test_vllm_worker_engines_use_the_gpus_of_gpu_device_ids(
    tmp_path: Path, gpus: str, number: int
) -> None:
    """Several front ends of one engine need no additional GPUs."""
    model = deployable(tmp_path, engine_of(tmp_path, kind="vllm"), gpu_device_ids=gpus)
    assert (model.num_gpus, model.num_ranks) == (number, 1)


def test_vllm_worker_engine_uses_the_gpus_of_its_additional_arguments(tmp_path: Path) -> None:
    arguments = '{"tensor_parallel_size": 2}'
    model = deployable(tmp_path, engine_of(tmp_path, kind="vllm"), vllm_args=arguments)
    assert model.num_gpus == 2


def test_invalid_number_of_gpus_is_reported(tmp_path: Path) -> None:
    arguments = '{"tensor_parallel_size": "two"}'
    with pytest.raises(RepositoryError, match="The number of GPUs cannot be read from") as raised:
        deployable(tmp_path, engine_of(tmp_path, kind="vllm"), vllm_args=arguments)
    assert "vllm_args=JSON" in raised.value.next_step


def test_targets_of_links_are_included(tmp_path: Path) -> None:
    blobs = tmp_path / "hub" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "weights").touch()
    engine = engine_of(tmp_path)
    (engine.path / "model.safetensors").symlink_to(blobs / "weights")
    assert deployable(tmp_path, engine).folders == (tmp_path / "repository", engine.path, blobs)


def test_prefetched_adapters_are_included(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    (adapters := tmp_path / "adapters").mkdir()
    model = deployable(tmp_path, engine, lora_prefetch_dir=str(adapters))
    assert model.folders == (tmp_path / "repository", engine.path, adapters)


@pytest.mark.parametrize(("name", "why"), [("typo", "does not exist"), ("file", "is not a folder")])
def test_missing_folder_of_prefetched_adapters_is_refused(
    tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput) as raised:
        deployable(tmp_path, engine_of(tmp_path), lora_prefetch_dir=str(tmp_path / name))
    assert raised.value.why == f"lora_prefetch_dir is {tmp_path / name}, which {why}"
    repository = tmp_path / "repository"
    assert f"`tllm set --repo {repository} lora_prefetch_dir=DIR`" in raised.value.next_step


def test_ranks_are_split_evenly() -> None:
    assert split_evenly(16, 2, "ranks") == 8
    with pytest.raises(BadInput, match="16 ranks cannot be divided evenly among 3 nodes"):
        split_evenly(16, 3, "ranks")
