"""The `preprocessing` model: text to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from .engine import InvalidRequest
from .parameters import Parameters
from .preprocessor import Preprocessor
from .python_stub import pick_requested
from .tensors import Array


class TritonPythonModel:
    """Triton's hooks."""

    def initialize(self, args: dict[str, str]) -> None:
        self._preprocessor = Preprocessor.of(Parameters(args))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            tensors = self._preprocessor.encode(lambda name: _as_array(request, name))
        except InvalidRequest as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        made = [pb_utils.Tensor(name, value) for name, value in tensors.items()]
        return pb_utils.InferenceResponse(pick_requested(request.requested_output_names(), made))


def _as_array(request: Any, name: str) -> Array | None:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()
