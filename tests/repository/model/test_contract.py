"""The tensors in `contract.yaml`."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2

from trtllm_serve_cli.repository.model.contract import (
    STOP,
    Tensor,
    find_first_version,
    load_contracts,
    load_text_contract,
)

MODELS = (
    "preprocessing",
    "tensorrt_llm",
    "postprocessing",
    "ensemble",
    "tensorrt_llm_bls",
    "vllm",
    "llmapi",
    "gpt/preprocessing",
    "gpt/tensorrt_llm",
    "gpt/postprocessing",
    "gpt/ensemble",
    "embedding",
)


def test_contract_covers_every_model_of_the_layouts() -> None:
    assert sorted(load_contracts()) == sorted(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_tensor_names_are_unique(model: str) -> None:
    contract = load_contracts()[model]
    for side in (contract.inputs, contract.outputs):
        names = [tensor.name for tensor in side]
        assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("model", MODELS)
def test_types_and_dims_are_valid_in_triton(model: str) -> None:
    contract = load_contracts()[model]
    for tensor in (*contract.inputs, *contract.outputs):
        assert model_config_pb2.DataType.Value(tensor.type) > 0
        assert all(size == -1 or size > 0 for size in tensor.dims)


def test_scalar_input_is_reshaped_from_one_value() -> None:
    tensors = {tensor.name: tensor for tensor in load_contracts()["tensorrt_llm"].inputs}
    assert tensors["end_id"] == Tensor("end_id", "TYPE_INT32", (1,), reshape=(), optional=True)
    assert tensors["input_ids"] == Tensor(
        "input_ids", "TYPE_INT32", (-1,), optional=True, ragged=True
    )


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [
        ("0.19.0", {"sampling_param_beam_width"}, {"sampling_param_best_of", "stop", "lora_name"}),
        ("0.20.0", {"sampling_param_best_of"}, {"sampling_param_beam_width", "stop"}),
        ("1.2.1", {"sampling_param_return_perf_metrics", "stop"}, {"image_url", "lora_path"}),
        ("1.3.0", {"image_url", "lora_id", "lora_name", "lora_path", "lora_ckpt_source"}, set()),
        ("", {"sampling_param_logits_post_processor_name"}, {"sampling_param_beam_width"}),
    ],
)
def test_llmapi_tensors_follow_the_version(
    version: str, present: set[str], absent: set[str]
) -> None:
    contract = load_contracts(version)["llmapi"]
    names = {each.name for each in contract.inputs}
    assert present <= names and not absent & names
    has_metrics = "acceptance_rate" in {each.name for each in contract.outputs}
    assert has_metrics == (version not in ("0.19.0", "0.20.0"))


def test_tensors_follow_the_version() -> None:
    def names(version: str) -> set[str]:
        return {each.name for each in load_contracts(version)["tensorrt_llm"].inputs}

    assert {"random_seed", "min_length"} <= names("0.19.0") and not {"seed"} & names("0.19.0")
    assert {"seed", "min_tokens"} <= names("0.20.0") and not {"min_length"} & names("0.20.0")
    assert names("0.8.0") < names("0.19.0")
    assert names("") == names("unknown") == names("1.2.1")


@pytest.mark.parametrize("version", ["0.5.0", "0.7.1", "0.8.0", "0.9.0.dev1", "0.13.0", "1.0.0"])
@pytest.mark.parametrize("model", MODELS)
def test_tensor_names_are_unique_in_every_version(version: str, model: str) -> None:
    contract = load_contracts(version)[model]
    for side in (contract.inputs, contract.outputs):
        names = [tensor.name for tensor in side]
        assert len(names) == len(set(names))


def test_text_models_have_every_input_that_the_engine_supports() -> None:
    def names(version: str) -> set[str]:
        return {each.name for each in load_text_contract("ensemble", version).inputs}

    assert {"lora_task_id", "random_seed", "exclude_input_in_output"} <= names("0.9.0")
    assert not {"guided_decoding_guide", "num_return_sequences", "seed"} & names("0.9.0")
    assert "num_return_sequences" in names("0.14.0")
    text, newest = load_text_contract("ensemble"), load_contracts()["ensemble"]
    assert (text.inputs, text.outputs) == ((*newest.inputs, STOP), newest.outputs)


def test_first_version_of_an_input() -> None:
    assert find_first_version("tensorrt_llm", "random_seed") == "0.5"
    assert find_first_version("tensorrt_llm", "seed") == "0.20"
    assert find_first_version("tensorrt_llm", "nothing") is None
