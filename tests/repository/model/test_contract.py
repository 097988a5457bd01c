"""The tensors in `contract.yaml`."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2

from trtllm_serve_cli.repository.model.contract import Tensor, load_contracts

MODELS = (
    "preprocessing",
    "tensorrt_llm",
    "postprocessing",
    "ensemble",
    "tensorrt_llm_bls",
    "vllm",
    "llmapi",
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
