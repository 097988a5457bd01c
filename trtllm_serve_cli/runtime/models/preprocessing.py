"""The `preprocessing` model, which encodes text to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from ..engine import InvalidRequest
from ..pulse import start_beating
from ..text.preprocessor import Preprocessor
from ..text.tokenizer import BadTokenizer
from ..triton.parameters import Parameters
from ..triton.stub_workarounds import pick_requested, read_inputs


class TritonPythonModel:
    """The model that Triton's Python backend loads and calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters(args)
        # The tokenizer is loaded with the first request. Most servers receive none, because the
        # text models encode texts themselves.
        self._preprocessor = Preprocessor.of(parameters)
        start_beating("model", parameters.model_name)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            tensors = self._preprocessor.encode(read_inputs(request).get)
        except (InvalidRequest, BadTokenizer, ImportError) as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        outputs = [pb_utils.Tensor(name, value) for name, value in tensors.items()]
        return pb_utils.InferenceResponse(pick_requested(request.requested_output_names(), outputs))
