"""Sample models to deploy on Kubernetes, and their manifests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from trtllm_serve_cli.gateway.config import GatewayConfig, ServedModel
from trtllm_serve_cli.launch.clusters.kubernetes import (
    KubernetesOptions,
    Manifest,
    plan_kubernetes,
    render_manifests,
)
from trtllm_serve_cli.launch.clusters.pod_gateway import ENDPOINT, KEYS_FILE, PodGateway
from trtllm_serve_cli.launch.clusters.pod_script import GATEWAY_FOLDER, SHARED_FILES
from trtllm_serve_cli.launch.containers.deployment import Deployable
from trtllm_serve_cli.launch.launch_options import LaunchOptions

HOME = Path("/home/me/tllm")
PLAIN = Deployable(
    name="Llama_3.1",
    text_model="Llama_3.1",
    kind="tensorrt",
    models=("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "Llama_3.1"),
    repository=HOME / "models" / "Llama_3.1",
    folders=(HOME / "models" / "Llama_3.1", HOME / "engines" / "llama"),
    num_gpus=1,
    num_ranks=1,
    image="nvcr.io/nvidia/tritonserver:25.03-trtllm-python-py3",
    reports_waiting=True,
    runtime=HOME / "models" / "Llama_3.1" / "preprocessing" / "1",
    needs_tokens=True,
)
SPREAD = dataclasses.replace(PLAIN, num_gpus=16, num_ranks=16)
LLM_API = dataclasses.replace(SPREAD, kind="pytorch", is_llm_api=True)
# A model whose engine worker writes heartbeats, and a model from an earlier version.
WITH_WORKER = dataclasses.replace(PLAIN, kind="vllm", needs_tokens=False)
OLD = dataclasses.replace(PLAIN, runtime=None)
ON_TWO = KubernetesOptions(nodes=2, image="triton-with-kubectl", namespace="llm")


GATEWAY = PodGateway(
    GatewayConfig(
        (ServedModel("Llama_3.1", "Llama_3.1", ENDPOINT),),
        host="0.0.0.0",
        server_directory=GATEWAY_FOLDER,
        keys_file=KEYS_FILE,
    ),
    "registry/tllm:1",
    "llm-keys",
)


def plan(
    model: Deployable = PLAIN,
    options: KubernetesOptions | None = None,
    gateway: PodGateway | None = None,
    **launch_options: Any,
) -> dict[str, Manifest]:
    """Plan the manifests, render and parse them, and return them by kind."""
    launch = LaunchOptions(**{"host": "0.0.0.0", "timeout_s": 600.0, **launch_options})
    made = plan_kubernetes(
        model, options or KubernetesOptions(), launch, home=HOME, gateway=gateway
    )
    read = list(yaml.safe_load_all(render_manifests(made)))
    assert read == made
    return {each["kind"]: each for each in read}


def templates(manifest: Manifest) -> list[Manifest]:
    template = manifest["spec"]["leaderWorkerTemplate"]
    return [
        {"apiVersion": "v1", "kind": "PodTemplate", "template": template[name]}
        for name in ("leaderTemplate", "workerTemplate")
    ]


def script_of(container: Manifest, folder: Path) -> str:
    """Return the script of a container, with its files in shared memory moved to `folder`."""
    script: str = container["command"][2]
    return script.replace(SHARED_FILES, f"{folder}/shared-")


def container(manifest: Manifest) -> dict[str, Any]:
    (only,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(only)
