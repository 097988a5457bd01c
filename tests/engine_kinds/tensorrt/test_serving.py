"""The C++ backend's model, rendered and parsed as Triton parses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.samples.tensorrt_engines import tensorrt_engine
from trtllm_serve_cli.build.engine import Engine
from trtllm_serve_cli.engine_kinds.serving import ServingOptions
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.repository.model.contract import load_contracts
from trtllm_serve_cli.repository.model.render import render_files
from trtllm_serve_cli.repository.planning.repository_plan import plan_repository

# Keys of `parameters` in NVIDIA/TensorRT-LLM@0c8de69a,
# triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt, with the values that an
# import of the sample engine writes.
PARAMETERS = {
    "max_beam_width": "2",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "gpt_model_type": "inflight_fused_batching",
    "gpt_model_path": "{engine}",
    "encoder_model_path": "",
    "max_tokens_in_paged_kv_cache": "",
    "max_attention_window_size": "",
    "sink_token_length": "",
    "batch_scheduler_policy": "",
    "kv_cache_free_gpu_mem_fraction": "",
    "cross_kv_cache_fraction": "",
    "kv_cache_host_memory_bytes": "",
    "kv_cache_onboard_blocks": "",
    "enable_trt_overlap": "",
    "exclude_input_in_output": "false",
    "cancellation_check_period_ms": "100",
    "stats_check_period_ms": "",
    "iter_stats_max_iterations": "",
    "request_stats_max_iterations": "",
    "enable_kv_cache_reuse": "false",
    "normalize_log_probs": "",
    "enable_chunked_context": "",
    "gpu_device_ids": "",
    "participant_ids": "",
    "num_nodes": "",
    "lora_cache_optimal_adapter_size": "",
    "lora_cache_max_adapter_size": "64",
    "lora_cache_gpu_memory_fraction": "",
    "lora_cache_host_memory_bytes": "1073741824",
    "lora_prefetch_dir": "",
    "decoding_mode": "",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    "lookahead_window_size": "",
    "lookahead_ngram_size": "",
    "lookahead_verification_set_size": "",
    "medusa_choices": "",
    "eagle_choices": "",
    "gpu_weights_percent": "",
    "enable_context_fmha_fp32_acc": "",
    "multi_block_mode": "",
    "cuda_graph_mode": "",
    "cuda_graph_cache_size": "",
    "speculative_decoding_fast_logits": "",
    "tokenizer_dir": "{tokenizer}",
    "guided_decoding_backend": "",
    "xgrammar_tokenizer_info_path": "",
}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return tensorrt_engine(tmp_path)


def render(engine: Engine, model: str = "tensorrt_llm", **options: Any) -> Any:
    parameters = {"tokenizer_dir": "/tok", **options.pop("parameters", {})}
    plan = plan_repository("mine", engine, ServingOptions(parameters=parameters, **options))
    text = render_files(plan)[f"{model}/config.pbtxt"]
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def parameters_of(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def types_of(config: Any) -> dict[str, str]:
    name = model_config_pb2.DataType.Name
    return {each.name: name(each.data_type) for each in (*config.input, *config.output)}


def test_config_has_exactly_the_upstream_parameters(engine: Engine) -> None:
    expected = {
        key: value.format(engine=engine.path, tokenizer="/tok") for key, value in PARAMETERS.items()
    }
    assert parameters_of(render(engine)) == expected


def test_config_matches_upstream_except_tensors_and_parameters(engine: Engine) -> None:
    config = render(engine)
    for field in ("input", "output", "parameters"):
        config.ClearField(field)
    assert config == text_format.Parse(
        """
        name: "tensorrt_llm"
        backend: "tensorrtllm"
        max_batch_size: 16
        model_transaction_policy { decoupled: true }
        dynamic_batching {
            preferred_batch_size: 16
            default_queue_policy { allow_timeout_override: true }
        }
        instance_group { count: 1 kind: KIND_CPU }
        """,
        model_config_pb2.ModelConfig(),
    )


def test_tensors_match_the_contract_except_types_of_the_engine(engine: Engine) -> None:
    contract = load_contracts()["tensorrt_llm"]
    expected = {each.name: each.type for each in (*contract.inputs, *contract.outputs)}
    expected["prompt_embedding_table"] = expected["lora_weights"] = "TYPE_BF16"
    assert types_of(render(engine)) == expected


def test_logits_type_reaches_every_model_that_has_logits(engine: Engine) -> None:
    parameters = {"logits_datatype": "TYPE_FP16"}
    for model, tensors in {
        "tensorrt_llm": ("draft_logits", "context_logits", "generation_logits"),
        "ensemble": ("context_logits", "generation_logits"),
        "tensorrt_llm_bls": ("context_logits", "generation_logits"),
        "mine": ("context_logits", "generation_logits"),
    }.items():
        types = types_of(render(engine, model, parameters=parameters))
        assert {types[name] for name in tensors} == {"TYPE_FP16"}


def test_cpp_backend_model_has_no_python_code(engine: Engine) -> None:
    files = render_files(plan_repository("mine", engine, ServingOptions()))
    mine = {path: text for path, text in files.items() if path.startswith("tensorrt_llm/")}
    assert sorted(mine) == ["tensorrt_llm/1/.keep", "tensorrt_llm/config.pbtxt"]
    assert "tensorrt_llm_bls/1/model.py" in files


def test_tensors_and_parameters_are_those_of_the_version(tmp_path: Path) -> None:
    engine = tensorrt_engine(tmp_path, "0.9.0")
    config = render(engine)
    contract = load_contracts("0.9.0")["tensorrt_llm"]
    assert [each.name for each in config.input] == [each.name for each in contract.inputs]
    assert [each.name for each in config.output] == [each.name for each in contract.outputs]
    parameters = parameters_of(config)
    assert "medusa_choices" in parameters and "guided_decoding_backend" not in parameters
    for model in ("ensemble", "tensorrt_llm_bls", "mine"):
        text = render(engine, model)
        names = {each.name for each in text.input}
        assert {"random_seed", "min_length", "exclude_input_in_output"} <= names
        assert parameters_of(text)["tensorrt_llm_version"] == "0.9.0"


@pytest.mark.parametrize("has_paged_context", [True, False])
def test_kv_cache_is_reused_if_the_engine_supports_it(
    tmp_path: Path, has_paged_context: bool
) -> None:
    plugins = {"use_paged_context_fmha": has_paged_context}
    engine = tensorrt_engine(tmp_path, plugin_config=plugins)
    expected = str(has_paged_context).lower()
    assert parameters_of(render(engine))["enable_kv_cache_reuse"] == expected


def test_static_batching_is_rendered(engine: Engine) -> None:
    config = render(engine, parameters={"batching_strategy": "V1", "decoupled_mode": "false"})
    assert parameters_of(config)["gpt_model_type"] == "V1"
    assert not config.model_transaction_policy.decoupled


def test_options_within_the_engine_limits_are_rendered(engine: Engine) -> None:
    config = render(engine, max_batch_size=4, max_beam_width=1)
    assert (config.max_batch_size, parameters_of(config)["max_beam_width"]) == (4, "1")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"max_batch_size": 17}, "--max-batch-size 17 exceeds the engine's limit."),
        ({"max_beam_width": 3}, "--max-beam-width 3 exceeds the engine's limit."),
        ({"parameters": {"max_beam_width": "3"}},
         "max_beam_width 3 exceeds the engine's limit."),
        ({"max_seq_len": 9}, "--max-seq-len cannot be changed for a built engine."),
        ({"max_num_tokens": 9}, "--max-num-tokens cannot be changed for a built engine."),
        ({"parameters": {"triton_backend": "python"}},
         "tllm cannot create a model repository with triton_backend=python."),
        ({"parameters": {"multimodal_encoders_name": "vision"}},
         "The multimodal_encoders_name parameter has no effect in the inflight layout."),
        ({"parameters": {"enable_kv_cache_reuse": "true"}},
         "The engine does not support enable_kv_cache_reuse=true."),
        ({"parameters": {"enable_chunked_context": "true"}},
         "The engine does not support enable_chunked_context=true."),
        ({"layout": "vllm"}, "The vllm layout does not support the tensorrt engine kind."),
    ],
)  # fmt: skip
def test_rejects_options_beyond_the_engine(
    engine: Engine, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadInput) as raised:
        render(engine, **options)
    assert raised.value.what == what


def test_rejects_a_parameter_of_another_version(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        render(
            tensorrt_engine(tmp_path, "0.11.0"), parameters={"guided_decoding_backend": "xgrammar"}
        )
    assert str(raised.value) == (
        "The guided_decoding_backend parameter has no effect with TensorRT-LLM 0.11.0.\n"
        "Why: only TensorRT-LLM 0.19 and later versions support the parameter\n"
        "Next: omit the parameter"
    )


def test_each_group_of_gpus_gets_an_instance(engine: Engine) -> None:
    config = render(engine, parameters={"gpu_device_ids": "0,1;2,3"})
    assert config.instance_group[0].count == 2
    assert config.parameters["gpu_device_ids"].string_value == "0,1;2,3"
