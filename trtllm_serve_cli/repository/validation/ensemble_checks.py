"""Check that the ensemble steps, model names and batch sizes in a repository are consistent."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_serve_cli.repository.model.findings import Checked, Finding, type_name
from trtllm_serve_cli.repository.model.parameters import load_parameters

# Maps each tensor in an ensemble to its data type and a description of its producer. The data type
# is None if it is unknown.
_Producers = dict[str, tuple[int | None, str]]

_ENGINE_MODEL = "tensorrt_llm"
# Maps each of NVIDIA's Python models to its instance count parameter.
_INSTANCE_COUNTS = {
    "preprocessing": "preprocessing_instance_count",
    "postprocessing": "postprocessing_instance_count",
    "tensorrt_llm_bls": "bls_instance_count",
}
_ADVISED_INSTANCES = 5


def check_ensembles(checked: Checked) -> Iterator[Finding]:
    """Yield findings about ensembles, calls to other models, batch sizes and instance counts."""
    for model, config in checked.configs.items():
        if config.HasField("ensemble_scheduling"):
            yield from _check_ensemble(checked, model)
        yield from _check_referenced_models(checked, model)
        yield from check_batches(checked, model)
        yield from _check_instances(checked, model)


def _check_referenced_models(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield an error for each model that `model` calls but the repository does not contain."""
    repository = checked.repository
    for parameter in load_parameters().values():
        if parameter.type != "model":
            continue
        for place in repository.places_in(parameter, model):
            target = repository.value(model, place)
            if target and target not in repository.texts:
                yield checked.finding(
                    "error", model, f"the model calls the {target} model, which does not exist",
                    f"run `{checked.set_command} {parameter.name}={_nearest(target, checked)}`",
                    place=place,
                )  # fmt: skip


def _nearest(name: str, checked: Checked) -> str:
    near = difflib.get_close_matches(name, checked.repository.texts, n=1)
    return near[0] if near else "NAME"


def check_batches(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield findings if batch sizes or priorities in `model` contradict each other."""
    config = checked.configs[model]
    preferred = config.dynamic_batching.preferred_batch_size
    if preferred and max(preferred) > config.max_batch_size:
        yield checked.finding(
            "error", model,
            f"the preferred batch size is {max(preferred)}, but max_batch_size is "
            f"{config.max_batch_size}",
            f"run `{checked.set_command} triton_max_batch_size={max(preferred)}`",
            place="dynamic_batching.preferred_batch_size",
        )  # fmt: skip
    levels, default = (
        config.dynamic_batching.priority_levels,
        config.dynamic_batching.default_priority_level,
    )
    if not min(levels, 1) <= default <= levels:
        yield checked.finding(
            "error", model,
            f"default_priority_level is {default}, but priority_levels is {levels}",
            f"run `{checked.set_command} priority_levels={levels} "
            f"default_priority_level={min(levels, 1)}`",
            place="dynamic_batching.default_priority_level",
        )  # fmt: skip


def _check_instances(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield a warning if NVIDIA's Python model has one instance but the engine batches requests.

    An instance of NVIDIA's Python models processes one request at a time. The suggested number of
    instances is the engine's maximum batch size, but at most five. NVIDIA's documentation
    recommends five instances for most cases. Source: docs/model_config.md in
    triton-inference-server/tensorrtllm_backend v0.16.0.
    """
    repository = checked.repository
    parameter = _INSTANCE_COUNTS.get(repository.role(model) or "")
    engine = checked.configs.get(_ENGINE_MODEL)
    if parameter is None or repository.has_manifest or engine is None:
        return
    counts = [each.count for each in checked.configs[model].instance_group]
    if counts == [1] and engine.max_batch_size > 1 and checked.configs[model].backend == "python":
        advised = min(engine.max_batch_size, _ADVISED_INSTANCES)
        yield checked.finding(
            "warning", model,
            "the model's only instance processes one request at a time, but the engine's maximum "
            f"batch size is {engine.max_batch_size}",
            f"run `{checked.set_command} {parameter}={advised}`", place="instance_group.count",
        )  # fmt: skip


def _check_ensemble(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield findings about the steps of an ensemble and about the tensors between steps."""
    ensemble = checked.configs[model]
    steps = list(ensemble.ensemble_scheduling.step)
    producers: _Producers = {
        each.name: (each.data_type, f"the ensemble's {each.name} input") for each in ensemble.input
    }
    for step in steps:
        place = f"ensemble_scheduling.step.{step.model_name}.model_name"
        if step.model_name not in checked.repository.texts:
            yield checked.finding(
                "error", model, f"a step calls the {step.model_name} model, which does not exist",
                _did_you_mean(step.model_name, checked.repository.texts), place=place,
            )  # fmt: skip
        step_config = checked.configs.get(step.model_name)
        if step_config is None:
            # Another finding already reports that the model is missing or cannot be parsed. Add the
            # step's mapped outputs, to avoid findings about tensors without a producer.
            producers |= dict.fromkeys(step.output_map.values(), (None, ""))
            continue
        outputs = {each.name: each.data_type for each in step_config.output}
        for key, name in sorted(step.output_map.items()):
            if key in outputs:
                producers[name] = (outputs[key], f"the {key} output of {step.model_name}")
            else:
                yield checked.finding(
                    "error", model, f"{step.model_name} has no output named {key}",
                    _did_you_mean(key, outputs), place=place,
                )  # fmt: skip
        if ensemble.max_batch_size > step_config.max_batch_size:
            yield checked.finding(
                "error", model,
                f"max_batch_size is {ensemble.max_batch_size}, but the max_batch_size of the "
                f"{step.model_name} step is {step_config.max_batch_size}",
                f"run `{checked.set_command} triton_max_batch_size={ensemble.max_batch_size}`",
                place="max_batch_size",
            )  # fmt: skip
    yield from _check_use(checked, model)
    for step in steps:
        if step.model_name in checked.configs:
            yield from _check_step(checked, model, step, producers)
    for output in ensemble.output:
        yield from _check_tensor(
            checked, model, output.name, output.data_type, f"the ensemble's {output.name} output",
            producers, f"output.{output.name}.name",
        )  # fmt: skip


def _check_use(checked: Checked, model: str) -> Iterator[Finding]:
    """Yield an error for each tensor that is unused or that several steps set.

    Triton rejects such ensembles. Source: `BuildEnsembleGraph` and
    `ValidateEnsembleSchedulingConfig` in src/model_config_utils.cc in triton-inference-server/core.
    """
    ensemble = checked.configs[model]
    steps = ensemble.ensemble_scheduling.step
    read = {name for step in steps for name in step.input_map.values()}
    read |= {each.name for each in ensemble.output}
    for each in ensemble.input:
        if each.name not in read:
            yield checked.finding(
                "error", model, f"no step uses the ensemble's {each.name} input",
                "remove the input, or add it to an input_map", place=f"input.{each.name}.name",
            )  # fmt: skip
    written: set[str] = set()
    for step in steps:
        place = f"ensemble_scheduling.step.{step.model_name}.model_name"
        for key, name in sorted(step.output_map.items()):
            if name in written or name not in read:
                problem = "is already set by another output" if name in written else "is not used"
                yield checked.finding(
                    "error", model, f"{step.model_name} sets {name}, which {problem}",
                    f"change or remove the output_map of {key}", place=place,
                )  # fmt: skip
            written.add(name)


def _check_step(
    checked: Checked, model: str, step: Any, producers: _Producers
) -> Iterator[Finding]:
    place = f"ensemble_scheduling.step.{step.model_name}.model_name"
    inputs = {each.name: each for each in checked.configs[step.model_name].input}
    for key, name in sorted(step.input_map.items()):
        if key not in inputs:
            yield checked.finding(
                "error", model, f"{step.model_name} has no input named {key}",
                _did_you_mean(key, inputs), place=place,
            )  # fmt: skip
            continue
        consumer = f"the {key} input of {step.model_name}"
        yield from _check_tensor(
            checked, model, name, inputs[key].data_type, consumer, producers, place
        )
    for key, tensor in inputs.items():
        if not tensor.optional and key not in step.input_map:
            yield checked.finding(
                "error", model,
                f"{step.model_name} requires the {key} input, but no input_map sets it",
                f'add input_map {{ key: "{key}" value: … }} to the step', place=place,
            )  # fmt: skip


def _check_tensor(
    checked: Checked,
    model: str,
    name: str,
    data_type: int,
    consumer: str,
    producers: _Producers,
    place: str,
) -> Iterator[Finding]:
    if name not in producers:
        yield checked.finding(
            "error", model,
            f"no input or step of the ensemble produces {name} for {consumer}",
            _did_you_mean(name, producers), place=place,
        )  # fmt: skip
        return
    produced_type, producer = producers[name]
    if produced_type is not None and produced_type != data_type:
        yield checked.finding(
            "error", model,
            f"{consumer} is {type_name(data_type)}, but {producer} is {type_name(produced_type)}",
            "set the same data_type for both tensors", place=place,
        )  # fmt: skip


def _did_you_mean(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"use {near[0]} instead" if near else ""
