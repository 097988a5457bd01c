"""A stand-in for vLLM 0.26 with the part that the engine worker uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]


class LLM:
    """The part of vLLM that `benchmarks/gpu_raw.py` and the embedder call."""

    def __init__(self, **arguments: Any) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core_client import SyncMPClient

        runner = arguments.pop("runner", "generate")
        self._core = SyncMPClient(EngineArgs(**arguments).create_engine_config())
        self._num_requests = 0
        self._is_pooling = runner == "pooling"
        self.llm_engine = SimpleNamespace(engine_core=self._core)

    def embed(self, prompts: list[dict[str, Any]], *, use_tqdm: bool = True) -> list[Any]:
        """Return the sum and the number of the tokens as the embedding."""
        assert self._is_pooling
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        vectors = [[float(sum(each)), float(len(each))] for each in ids]
        return [SimpleNamespace(outputs=SimpleNamespace(embedding=each)) for each in vectors]

    def generate(
        self,
        prompts: list[dict[str, Any]],
        params: list[SamplingParams],
        use_tqdm: bool = True,
        lora_request: Any = None,
    ) -> list[Any]:
        from vllm.v1.engine import EngineCoreRequest

        tokens: dict[str, list[int]] = {}
        for prompt, each in zip(prompts, params, strict=True):
            self._num_requests += 1
            name = str(self._num_requests)
            tokens[name] = []
            self._core.add_request(
                EngineCoreRequest(
                    name,
                    prompt["prompt_token_ids"],
                    None,
                    each,
                    None,
                    0.0,
                    lora_request,
                    None,
                    None,
                )
            )
        num_open = len(tokens)
        while num_open:
            outputs = self._core.outputs_queue.get()
            assert not isinstance(outputs, Exception)
            for output in outputs.outputs:
                tokens[output.request_id] += output.new_token_ids
                num_open -= output.finish_reason is not None
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=t)]) for t in tokens.values()]
