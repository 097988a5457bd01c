"""What runs in a pod: bash, and where an engine has ranks, `mpirun` with `kubectl exec` for ssh."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_serve_cli.launch.containers.deployment import (
    CORE_MODEL,
    Deployable,
    spread,
    triton_words,
)
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.topology.mpi import mpirun_words, pool_flags, ranks_environ
from trtllm_serve_cli.launch.topology.ranks import Ranks
from trtllm_serve_cli.launch.triton.triton_command import flag_words, other_rank_flags
from trtllm_serve_cli.launch.triton.triton_install import IN_CONTAINER

# Of the pod alone, so they may always be the same.
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
AGENT_FOLDER = "/opt/tllm"
AGENT = """\
#!/bin/sh
# What mpirun starts its daemons with: called as ssh is, it goes by kubectl.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec kubectl exec "$host" -- /bin/sh -c "$*"
"""
# Ranks run here until the leader has finished what is in flight and lets go of them.
IDLE = """\
trap 'while grep -qsxE "orted|prted|tritonserver" /proc/[0-9]*/comm; do sleep 1; done; exit 0' TERM
sleep infinity &
wait
"""
# bash passes no signal on, and an mpirun that is to end gives its ranks a second. So the Triton
# that answers is told first, known by the token; the other ranks serve it until it has ended.
_FINISH = """\
servers() {
  for process in /proc/[0-9]*; do
    if [ "$(cat "$process/comm")" = tritonserver ] &&
      grep -qzxF "TLLM_TOKEN=$TLLM_TOKEN" "$process/environ" &&
      ! grep -qz '^OMPI_COMM_WORLD_RANK=[1-9]' "$process/environ"; then
      echo "${process#/proc/}"
    fi
  done 2> /dev/null
}
finish() {
  for server in $(servers); do kill -TERM "$server"; done
  while [ -n "$(servers)" ]; do sleep 1; done
  [ -z "$mpirun" ] || { kill -TERM "$mpirun"; wait "$mpirun"; }
  exit 0
}
mpirun=
trap finish TERM
"""


def pod_script(model: Deployable, launch: LaunchOptions, *, nodes: int) -> str:
    """What the pod that answers runs. Nobody else knows the token, so what it guards is closed."""
    words = triton_words(
        model,
        IN_CONTAINER,
        launch,
        token='"$TLLM_TOKEN"',
        given={
            **{f"{name}-port": str(port) for name, port in PORTS.items()},
            "backend-config": "python,shm-region-prefix-name=tllm-",
        },
    )
    server = [str(IN_CONTAINER.binary), *words.values()]
    token = "TLLM_TOKEN=$(head -c 18 /dev/urandom | base64 | tr '+/' '-_')\n"
    if nodes == 1 and model.num_ranks == 1 and not model.spawns:
        return f"{token}exec {_lines(server)}\n"
    slots = spread(model.num_ranks, nodes, "ranks")
    agent = ["--mca plm_rsh_agent", f"{AGENT_FOLDER}/kubessh", '--host "$hosts"']
    mpirun = mpirun_words(is_root=True, places=agent if nodes > 1 else ())
    command = _lines([*mpirun, *_ranks(model, server, words)])
    return (
        f"{token}export TLLM_TOKEN\n{_FINISH}{_find_hosts(nodes, slots)}"
        f'{command} &\nmpirun=$!\nwait "$mpirun"\n'
    )


def _ranks(model: Deployable, server: list[str], words: dict[str, str]) -> list[str]:
    if model.is_llm_api:
        # The launcher starts the server on the first rank alone.
        return [f"-n {model.num_ranks} trtllm-llmapi-launch", *server]
    if model.spawns:
        ranks = Ranks(way="orchestrator", spawns=True)
        environ = ranks_environ(ranks, LaunchOptions())
        # Instances came to upstream's backend after the Triton that knows none of these flags.
        pools = flag_words(pool_flags(ranks, model.num_gpus, {}))
        return ["-n 1", *(f"-x {name}={value}" for name, value in environ.items()), *server, *pools]
    others = flag_words(other_rank_flags((CORE_MODEL,)))
    told = [words["model-repository"], words["disable-auto-complete-config"], *others]
    return ["-n 1", *server, f": -n {model.num_ranks - 1}", server[0], *told]


def _find_hosts(nodes: int, slots: int) -> str:
    if nodes == 1:
        return ""
    return (
        f'hosts="$POD_NAME:{slots}"\n'
        f"for number in $(seq {nodes - 1}); do\n"
        '  until kubectl exec "$POD_NAME-$number" -- true; do sleep 2; done\n'
        f'  hosts="$hosts,$POD_NAME-$number:{slots}"\n'
        "done\n"
    )


def _lines(words: Sequence[str]) -> str:
    return " \\\n  ".join(words)
