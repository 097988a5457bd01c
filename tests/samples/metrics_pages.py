"""A metrics page as Triton 2.51 writes it, with an engine's metric families."""

from __future__ import annotations

PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="ensemble",version="1"} 6
nv_inference_request_success{model="tensorrt_llm",version="1"} 0
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="ensemble",reason="OTHER",version="1"} 0
nv_inference_request_failure{model="ensemble",reason="CANCELED",version="1"} 2
nv_inference_request_failure{model="ensemble",reason="BACKEND",version="1"} 1
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="ensemble",version="1"} 8
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="ensemble",version="1"} 3000
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{model="ensemble",version="1"} 1000
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{model="ensemble",version="1"} 10000
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{model="ensemble",version="1"} 1000
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="ensemble",version="1"} 5
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.985
# TYPE nv_cpu_memory_total_bytes gauge
nv_cpu_memory_total_bytes 25276510208
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes 666636288
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
# TYPE nv_gpu_memory_total_bytes gauge
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 150000000000
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 35000000000
# TYPE nv_gpu_power_usage gauge
nv_gpu_power_usage{gpu_uuid="GPU-1"} 350.25
# TYPE nv_gpu_power_limit gauge
nv_gpu_power_limit{gpu_uuid="GPU-1"} 700
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 7
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 256
# TYPE nv_trt_llm_runtime_memory_metrics gauge
nv_trt_llm_runtime_memory_metrics{memory_type="cpu",model="tensorrt_llm",version="1"} 3145728
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 1000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 250
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",\
version="1"} 32
# TYPE nv_trt_llm_general_metrics gauge
nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"} 123
# TYPE tllm_engine_worker_up gauge
tllm_engine_worker_up{model="tensorrt_llm",version="1"} 1
# TYPE tllm_engine_worker_restarts counter
tllm_engine_worker_restarts{model="tensorrt_llm",version="1"} 2
# TYPE something_of_tomorrow gauge
something_of_tomorrow{kind="new"} 1
"""

# Adds the metric families of tllm's own models.
OURS = (
    PAGE
    + """\
# TYPE tllm_requests_total counter
tllm_requests_total{model="demo",outcome="stop",version="1"} 10
tllm_requests_total{model="demo",outcome="length",version="1"} 20
tllm_requests_total{model="demo",outcome="cancelled",version="1"} 2
tllm_requests_total{model="demo",outcome="error",version="1"} 0
tllm_requests_total{model="demo",outcome="rejected",version="1"} 1
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="demo",version="1"} 33
# TYPE tllm_prompt_tokens_total counter
tllm_prompt_tokens_total{model="demo",version="1"} 3847
# TYPE tllm_generation_tokens_total counter
tllm_generation_tokens_total{model="demo",version="1"} 593
# TYPE tllm_time_to_first_token_seconds_bucket counter
tllm_time_to_first_token_seconds_bucket{le="0.5",model="demo",version="1"} 10
tllm_time_to_first_token_seconds_bucket{le="1",model="demo",version="1"} 30
tllm_time_to_first_token_seconds_bucket{le="+Inf",model="demo",version="1"} 30
# TYPE tllm_time_to_first_token_seconds_sum counter
tllm_time_to_first_token_seconds_sum{model="demo",version="1"} 18
# TYPE tllm_preemptions_total counter
tllm_preemptions_total{model="tensorrt_llm",version="1"} 1
# TYPE tllm_prefix_cache_queries_total counter
tllm_prefix_cache_queries_total{model="tensorrt_llm",version="1"} 200
# TYPE tllm_prefix_cache_hits_total counter
tllm_prefix_cache_hits_total{model="tensorrt_llm",version="1"} 50
"""
)
