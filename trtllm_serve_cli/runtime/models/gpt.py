"""The `tensorrt_llm` model in the gpt layout, which returns all rows in one response.

Unlike in the `inflight` layout, a response does not contain sequence lengths. Source:
all_models/gpt/tensorrt_llm in triton-inference-server/tensorrtllm_backend, tags v0.5.0 to v0.19.0.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..engines.kinds import list_supported_inputs
from ..requests.padded_response import PaddedResponseBuilder, PaddedRow, pad_rows
from ..requests.responses import ResponseBuilder
from ..triton.parameters import Parameters
from ..triton.tensors import Array, GetTensor, parse_rows
from . import tensorrt_llm


class TritonPythonModel(tensorrt_llm.TritonPythonModel):
    """The model that Triton's Python backend loads and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        parameters.add({"gpt_model_path": parameters.text("engine_dir")})
        self._start(parameters, list_supported_inputs(parameters.text("engine_kind")))

    def _parse(self, get: GetTensor, is_streaming: bool) -> list[PaddedRow]:
        return pad_rows(parse_rows(partial(_get_signed, get), exclude_input=False))

    def _new_response_builder(
        self, row: PaddedRow, *, arrival_time_ns: int, is_streaming: bool
    ) -> ResponseBuilder:
        return PaddedResponseBuilder(row, arrival_time_ns)


def _get_signed(get: GetTensor, name: str) -> Array | None:
    """Return the tensor `name`, with UINT32 values reinterpreted as INT32.

    Clients of this layout send end ids as UINT32, so -1 would otherwise be a large positive number.
    """
    tensor = get(name)
    return tensor.view(np.int32) if tensor is not None and tensor.dtype == np.uint32 else tensor
