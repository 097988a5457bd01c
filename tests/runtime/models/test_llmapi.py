"""The model of the llmapi layout on a real worker with the scripted engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import scripted_worker, tokenizer, triton_utils
from tests.fakes.triton_utils import Request, TritonModelException
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.runtime.triton.model_yaml import render_model_yaml

_INPUTS = load_contracts()["llmapi"].inputs
# Characters are tokens. The first one is the command of the scripted engine, a special token, which
# responses do not contain.
COUNT, HANG = "\x01a", "\x02a"


@contextmanager
def loaded(
    folder: Path,
    *,
    decoupled: bool = True,
    yaml_decoupled: bool | None = None,
    multimodal: bool = False,
    more_yaml: str = "",
    **arguments: str,
) -> Iterator[Any]:
    """Load the model on the scripted worker.

    `yaml_decoupled` is `decoupled` in model.yaml, and `more_yaml` is added to this file.
    """
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} {scripted_worker.__file__} "$@"\n'
    )
    python.chmod(0o755)
    sizes = ("max_beam_width", "max_num_seqs", "max_num_tokens", "max_seq_len")
    sizes += ("max_tokens_in_paged_kv_cache", "vocab_size")
    parameters = {
        **dict.fromkeys(sizes, "64"),
        "engine_kind": "openvino",
        "gpt_model_path": "/no/engine",
        "tokenizer_dir": str(folder),
        "add_special_tokens": "false",
        "engine_python": str(python),
        **arguments,
    }
    triton_config = {
        "decoupled": decoupled if yaml_decoupled is None else yaml_decoupled,
        "max_queue_size": 0,
        "multimodal": multimodal,
    }
    (folder / "1").mkdir()
    text = render_model_yaml(parameters, triton_config) + more_yaml
    (folder / "1" / "model.yaml").write_text(text)
    config = {
        "input": [{"name": name} for name in sorted(each.name for each in _INPUTS)],
        "model_transaction_policy": {"decoupled": decoupled},
    }
    args = {
        "model_config": json.dumps(config),
        "model_repository": str(folder),
        "model_name": "tensorrt_llm",
        "model_version": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", triton_utils)
        patch.setitem(sys.modules, "transformers", tokenizer)
        from trtllm_serve_cli.runtime.models.llmapi import TritonPythonModel

        model = TritonPythonModel()
        model.initialize(args)
        try:
            yield model
        finally:
            model.finalize()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with loaded(tmp_path_factory.mktemp("python")) as started:
        yield started


def request(prompt: str, request_id: str = "", **tensors: Any) -> Request:
    inputs = {"text_input": [prompt.encode()], "sampling_param_max_tokens": [2], **tensors}
    return Request({name: _array(each) for name, each in inputs.items()}, request_id)


def _array(values: list[Any]) -> Any:
    """Return an array as Triton passes it: strings are objects."""
    return np.array(values, dtype=object if isinstance(values[0], bytes) else None)


def generate(model: Any, prompt: str, **tensors: Any) -> list[Any]:
    sent = request(prompt, **tensors)
    model.execute([sent])
    return sent.sender.responses()


def test_response_is_the_prompt_and_the_generated_text(model: Any) -> None:
    assert generate(model, COUNT) == [{"text_output": [b"a\x0a\x0b"]}]


def test_excludes_the_prompt(model: Any) -> None:
    answers = generate(model, COUNT, sampling_param_exclude_input_from_output=[True])
    assert answers == [{"text_output": [b"\x0a\x0b"]}]


def test_streams_text_and_the_finish_reason(model: Any) -> None:
    answers = generate(model, COUNT, streaming=[True], return_finish_reason=[True])
    *before, last = answers
    assert b"".join(each["text_output"][0] for each in answers) == b"\x0a\x0b"
    assert [each["finish_reason"] for each in before] == [[b"None"]] * len(before)
    assert last["finish_reason"] == [b"length"]


def test_max_tokens_defaults_to_upstreams(model: Any) -> None:
    sent = Request({"text_input": [COUNT.encode()]})
    model.execute([sent])
    (only,) = sent.sender.responses()
    assert len(only["text_output"][0].decode()) == 1 + 32


def test_returns_the_cumulative_log_probability(model: Any) -> None:
    (only,) = generate(model, COUNT, return_cumulative_logprob=[True])
    assert only["cumulative_logprob"] == [-1.0]


def test_best_of_returns_one_response(model: Any) -> None:
    assert len(generate(model, COUNT, sampling_param_best_of=[3])) == 1


def test_stop_request_ends_the_running_request(model: Any) -> None:
    running, stop = request(HANG, "7"), Request({"stop": [True]}, "7")
    model.execute([running])
    model.execute([stop])
    assert running.sender.responses() == [{"text_output": [b"a"]}]
    assert stop.sender.responses() == [{}]


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"text_input": [b""]}, "text_input must contain exactly one non-empty prompt"),
        ({"text_input": [b"a", b"b"]}, "text_input must contain exactly one non-empty prompt"),
        ({"text_input": [b"\xff"]}, "text_input is not valid UTF-8 at byte 0; send UTF-8 text"),
        ({"sampling_param_seed": [1, 2]}, "sampling_param_seed has shape [2]; send one value"),
        (
            {"image_url": [b"x"]},
            "image_url (images and video) is not supported by the openvino engine kind",
        ),
        (
            {"lora_path": [b"/adapters/pirate"], "lora_name": [b"pirate"], "lora_id": [1]},
            "lora_id (adapters from paths) is not supported by the openvino engine kind, because "
            "adapters are read from lora_prefetch_dir and selected by lora_name. Omit lora_id.",
        ),
        (
            {"lora_path": [b"/adapters/pirate"]},
            "lora_path (adapters from paths) is not supported by the openvino engine kind",
        ),
        (
            {"lora_ckpt_source": [b"nemo"]},
            "lora_ckpt_source (adapters from paths) is not supported by the openvino engine kind",
        ),
        (
            {"sampling_param_logits_post_processor_name": [b"json_only"]},
            "sampling_param_logits_post_processor_name (logits post-processors) is not supported "
            "by the openvino engine kind, because only NVIDIA's Triton model for the LLM API runs",
        ),
        (
            {"sampling_param_temperature": [-1.0]},
            "temperature is -1; it must be between 0 and 10000",
        ),
        (
            {"sampling_param_best_of": [2], "streaming": [True]},
            "a response with sampling_param_best_of above 1 cannot be streamed",
        ),
        ({"stop": [True]}, "no running request has the id ''"),
    ],
)
def test_error_names_the_invalid_tensor(model: Any, tensors: dict[str, Any], why: str) -> None:
    (answer,) = generate(model, COUNT, **tensors)
    assert answer.startswith(why)


def test_empty_tensors_count_as_not_set(model: Any) -> None:
    unset = {"lora_id": [0], "lora_name": [b""], "lora_path": [b""], "image_url": [b""]}
    assert generate(model, COUNT, **unset) == [{"text_output": [b"a\x0a\x0b"]}]


def test_lora_name_selects_an_adapter(model: Any) -> None:
    assert generate(model, COUNT, lora_name=[b"pirate"]) == ["the script has no adapter pirate"]


def test_logits_post_processors_are_ignored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    section = "logits_post_processors:\n  json_only: my_company.processors:json_guard\n"
    with loaded(tmp_path, more_yaml=section) as model:
        assert generate(model, COUNT) == [{"text_output": [b"a\x0a\x0b"]}]
    assert "model.yaml: logits_post_processors is ignored, because" in capfd.readouterr().err


def test_multimodal_models_are_rejected(tmp_path: Path) -> None:
    why = "model.yaml sets triton_config.multimodal, but only text models are supported"
    with pytest.raises(TritonModelException, match=why), loaded(tmp_path, multimodal=True):
        pass


def test_model_that_is_not_decoupled_sends_one_response(tmp_path: Path) -> None:
    with loaded(tmp_path, decoupled=False) as model:
        assert generate(model, COUNT) == [{"text_output": [b"a\x0a\x0b"]}]
        (rejected,) = generate(model, COUNT, streaming=[True])
    assert rejected.startswith("streaming requires a decoupled model")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"yaml_decoupled": False},
            "model.yaml and config.pbtxt disagree on whether the model is decoupled",
        ),
        ({"max_bacth_size": "9"}, "model.yaml contains the unknown argument max_bacth_size"),
    ],
)
def test_invalid_model_yaml_fails_the_load(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(TritonModelException, match=why), loaded(tmp_path, **changes):
        pass


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("max_queue_size: many", "max_queue_size .* must be a whole number, but is 'many'"),
        ("max_queue_size: -1", "max_queue_size .* must be at least 0, but is -1"),
        ("cancellation_check_period_ms: 0", "cancellation_check_period_ms .* must be at least 1"),
    ],
)
def test_invalid_number_in_triton_config_is_named(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why), loaded(tmp_path, more_yaml=f"  {line}\n"):
        pass


def test_null_in_triton_config_selects_the_default(tmp_path: Path) -> None:
    lines = "  max_queue_size: null\n  cancellation_check_period_ms: null\n"
    with loaded(tmp_path, more_yaml=lines) as model:
        assert generate(model, COUNT) == [{"text_output": [b"a\x0a\x0b"]}]
