"""Add the OpenAI-compatible gateway to a pod that runs Triton.

NVIDIA's images do not contain tllm, so the gateway runs in a second container with a different
image. The containers of a pod share a network namespace, so the gateway can connect to the engine
worker's socket. The gateway needs Triton's process ID to find the socket. The containers therefore
share a process namespace, and Triton's container writes the ID of its main process to a shared
folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_serve_cli.client.endpoint import Endpoint
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.gateway.config import GatewayConfig
from trtllm_serve_cli.launch.clusters.pod_script import GATEWAY_FOLDER, PORTS
from trtllm_serve_cli.launch.launch_options import DRAIN_S
from trtllm_serve_cli.processes import SINGLE_THREADED

Manifest = dict[str, Any]

KEYS_FILE = "/etc/tllm/keys/keys.json"
ENDPOINT = Endpoint(
    grpc=f"127.0.0.1:{PORTS['grpc']}",
    http=f"127.0.0.1:{PORTS['http']}",
    metrics=f"127.0.0.1:{PORTS['metrics']}",
)
_CONFIG_FOLDER = "/etc/tllm/gateway"
_CONFIG_FILE = "gateway.json"
# The brackets prevent the pattern from matching the hook's own command line.
_WAIT = "while grep -qsz 'trtllm_serve_cli[.]gateway' /proc/[0-9]*/cmdline; do sleep 1; done"


@dataclass(frozen=True, slots=True)
class PodGateway:
    """The gateway that runs in each replica.

    `image` is a container image that contains tllm. `keys_secret` is the name of a Secret that
    contains `keys.json`, or None if the gateway has no API keys.
    """

    config: GatewayConfig
    image: str
    keys_secret: str | None = None


def check_gateway(gateway: PodGateway, max_replicas: int) -> None:
    """Raise `BadInput` if the gateway could not serve requests in up to `max_replicas` replicas.

    The gateway's port must differ from Triton's ports. If the gateway requires API keys, a Secret
    must provide the keys. If clients can load LoRA adapters, there must be a single replica.
    """
    port = gateway.config.port
    if port in PORTS.values():
        raise BadInput(
            f"The OpenAI-compatible API cannot use port {port}.",
            why=f"Triton uses ports {', '.join(map(str, PORTS.values()))} in the pod",
            next_step="choose another port with --openai-port N",
        )
    if gateway.config.key_policy == "on" and gateway.keys_secret is None:
        raise BadInput(
            "The OpenAI-compatible API would reject all requests.",
            why="--openai-auth on requires API keys, but no Secret provides keys to the pods",
            next_step="run `kubectl create secret generic tllm-keys --from-file=keys.json` in "
            "TLLM_HOME, and add --openai-keys-secret tllm-keys",
        )
    if gateway.config.runtime_lora_dir is not None and max_replicas > 1:
        raise BadInput(
            "--runtime-lora-dir requires a single replica.",
            why=f"the deployment can have up to {max_replicas} replicas, and each replica would "
            "serve only the adapters that clients have loaded into that replica",
            next_step="add --replicas 1 --max-replicas 1, or serve the adapters in all replicas "
            "with --lora NAME=FOLDER",
        )


def gateway_config_map(name: str) -> str:
    """Return the name of the ConfigMap that contains the gateway configuration of server `name`."""
    return f"{name}-gateway"


def gateway_data(gateway: PodGateway) -> dict[str, str]:
    """Return the ConfigMap data, which contains the gateway's configuration file."""
    return {_CONFIG_FILE: gateway.config.to_json() + "\n"}


def gateway_annotations(gateway: PodGateway) -> dict[str, str]:
    """Return pod annotations that trigger a rollout when the gateway configuration changes."""
    digest = hashlib.sha256(gateway_data(gateway)[_CONFIG_FILE].encode()).hexdigest()
    return {"tllm/gateway-config": digest[:16]}


def service_ports(gateway: PodGateway) -> list[Manifest]:
    """Return the Service ports for the gateway."""
    return [{"name": "openai", "port": gateway.config.port, "targetPort": "openai"}]


def add_gateway(pod: Manifest, name: str, gateway: PodGateway, pre_stop_s: int) -> Manifest:
    """Return the pod spec `pod` with the gateway added as the last container.

    When the pod is terminated, the gateway receives SIGTERM after `pre_stop_s` seconds. Triton's
    container receives SIGTERM after the gateway has exited.
    """
    triton, *others = pod["containers"]
    folder: Manifest = {"name": "gateway-folder", "mountPath": GATEWAY_FOLDER}
    # Keep Triton running until the gateway has finished its requests and exited.
    stop = ["bash", "-c", f"sleep {pre_stop_s}; {_WAIT}"]
    triton = {
        **triton,
        "lifecycle": {"preStop": {"exec": {"command": stop}}},
        "volumeMounts": [*triton["volumeMounts"], folder],
    }
    models = [each for each in triton["volumeMounts"] if each.get("readOnly")]
    volumes: list[Manifest] = [
        {"name": "gateway-folder", "emptyDir": {}},
        {"name": "gateway-config", "configMap": {"name": gateway_config_map(name)}},
    ]
    mounts: list[Manifest] = [
        folder,
        {"name": "gateway-config", "mountPath": _CONFIG_FOLDER, "readOnly": True},
    ]
    if gateway.keys_secret is not None:
        volumes.append({"name": "gateway-keys", "secret": {"secretName": gateway.keys_secret}})
        # Do not use `subPath`, because Kubernetes does not update subPath mounts when keys change.
        keys = KEYS_FILE.rpartition("/")[0]
        mounts.append({"name": "gateway-keys", "mountPath": keys, "readOnly": True})
    return {
        **pod,
        "shareProcessNamespace": True,
        "containers": [triton, *others, _container(gateway, [*models, *mounts], pre_stop_s)],
        # Allow time for two drains, because Triton drains only after the gateway has exited.
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"] + DRAIN_S,
        "volumes": [*pod["volumes"], *volumes],
    }


def _container(gateway: PodGateway, mounts: Sequence[Manifest], pre_stop_s: int) -> Manifest:
    def probe(path: str, period_s: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": "openai"},
            "periodSeconds": period_s,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        }

    config = f"{_CONFIG_FOLDER}/{_CONFIG_FILE}"
    return {
        "name": "gateway",
        "image": gateway.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "trtllm_serve_cli.gateway", config],
        "env": [{"name": name, "value": value} for name, value in SINGLE_THREADED.items()],
        "ports": [{"name": "openai", "containerPort": gateway.config.port}],
        # Only the readiness probe requests /health, which depends on the models. The other probes
        # request the chat page, which does not depend on Triton, so that a restart of Triton does
        # not restart the gateway.
        "startupProbe": probe("/", 2, 30),
        "readinessProbe": probe("/health", 5, 3),
        "livenessProbe": probe("/", 10, 3),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(pre_stop_s)]}}},
        "volumeMounts": list(mounts),
    }
