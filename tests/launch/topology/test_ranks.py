"""Plans of processes, and options that do not match the engines."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_serve_cli.choices import LaunchMode
from trtllm_serve_cli.errors import BadInput
from trtllm_serve_cli.launch.launch_options import LaunchOptions
from trtllm_serve_cli.launch.topology.ranks import Ranks, plan_ranks
from trtllm_serve_cli.repository.model.instances import EngineInstances

ONE, TP2 = EngineInstances("tensorrt_llm", 1), EngineInstances("tensorrt_llm", 2)
ON_FOUR = dataclasses.replace(TP2, gpus=((0, 1), (2, 3)))
OTHER = EngineInstances("other_tensorrt_llm", 2)
FIRST_TWO = dataclasses.replace(TP2, participants=((1, 2),))
NEXT_TWO = dataclasses.replace(OTHER, participants=((3, 4),))

LEADER_OF_TWO = Ranks(2, "leader", engines=("tensorrt_llm",))


def ranks(*engines: EngineInstances, mode: LaunchMode = "mpi", **options: Any) -> Ranks:
    return plan_ranks(engines, LaunchOptions(mode=mode, **options))


@pytest.mark.parametrize(
    ("engines", "options", "expected"),
    [
        ([], {}, Ranks(1, "servers")),
        ([], {"world_size": 2}, Ranks(2, "servers")),
        ([], {"world_size": 2, "gpus": "0,1,2,3"},
         Ranks(2, "servers", gpus=(("0", "1"), ("2", "3")))),
        ([], {"world_size": 2, "gpus": "MIG-a,MIG-b"},
         Ranks(2, "servers", gpus=(("MIG-a",), ("MIG-b",)))),
        ([TP2], {}, LEADER_OF_TWO),
        ([TP2], {"world_size": 2, "gpus": "2,3"}, LEADER_OF_TWO),
        ([TP2], {"gpus": "0", "hostfile": Path("hosts")}, LEADER_OF_TWO),
        ([TP2], {"multi_model": True}, Ranks(1, "orchestrator", spawns=True)),
        ([ON_FOUR], {}, Ranks(1, "orchestrator", spawns=True)),
        ([TP2, OTHER], {}, Ranks(1, "orchestrator", spawns=True)),
        (
            [FIRST_TWO, NEXT_TWO],
            {"disable_spawn_processes": True, "hostfile": Path("hosts")},
            Ranks(5, "orchestrator", engines=("tensorrt_llm", "other_tensorrt_llm")),
        ),
    ],
)  # fmt: skip
def test_processes_follow_from_the_engines(engines, options, expected) -> None:
    assert ranks(*engines, **options) == expected


@pytest.mark.parametrize("engines", [[], [ONE], [ONE, ONE]])
def test_local_mode_has_one_process(engines) -> None:
    assert ranks(*engines, mode="local", world_size=1, gpus="0") == Ranks()


@pytest.mark.parametrize(
    ("engines", "options", "message"),
    [
        ([TP2], {"mode": "local"}, "tensorrt_llm's engine needs 2 processes"),
        ([], {"mode": "local", "world_size": 2, "oversubscribe": True},
         "--world-size, --oversubscribe can be used only with MPI"),
        ([TP2], {"world_size": 4}, "--world-size must be 2, not 4"),
        ([ON_FOUR], {"world_size": 4}, "--world-size must be 1, not 4"),
        ([FIRST_TWO, NEXT_TWO], {"disable_spawn_processes": True, "world_size": 4},
         "--world-size must be 5, not 4"),
        ([], {"multi_model": True}, "require an engine that runs in Triton's C.. backend"),
        ([], {"hostfile": Path("hosts")}, "require an engine that runs in Triton's C.. backend"),
        ([], {"world_size": 2, "gpus": "0,1,2"}, "3 GPUs cannot be divided evenly"),
        ([ON_FOUR], {"hostfile": Path("hosts")}, "--hostfile cannot be used with spawned"),
        ([ON_FOUR], {"gpus": "0,1"}, "tensorrt_llm needs 4 GPUs"),
        ([TP2], {"gpus": "0"}, "tensorrt_llm needs 2 GPUs"),
        ([dataclasses.replace(TP2, gpus=((0,), (1,)))], {},
         "gpu_device_ids of tensorrt_llm does not match"),
        ([TP2], {"gpus": "MIG-a,MIG-b"}, "A MIG device cannot be combined with other GPUs"),
        ([TP2], {"disable_spawn_processes": True}, "participant_ids is not set for tensorrt_llm"),
        ([dataclasses.replace(TP2, participants=((0, 1),))], {"disable_spawn_processes": True},
         "participant_ids of tensorrt_llm does not match"),
    ],
)  # fmt: skip
def test_conflicting_options_are_rejected(engines, options, message) -> None:
    with pytest.raises(BadInput, match=message):
        ranks(*engines, **options)


def test_error_names_the_right_world_size() -> None:
    with pytest.raises(BadInput) as raised:
        ranks(TP2, world_size=4)
    assert str(raised.value) == (
        "--world-size must be 2, not 4.\n"
        "Why: tensorrt_llm's engine needs 2 processes\n"
        "Next: omit --world-size, or set --world-size 2"
    )


@given(st.integers(1, 8), st.integers(1, 4))
def test_every_gpu_goes_to_one_server(world_size: int, share: int) -> None:
    gpus = [str(number) for number in range(world_size * share)]
    made = ranks(world_size=world_size, gpus=",".join(gpus))
    assert [gpu for each in made.gpus for gpu in each] == gpus
    assert {len(each) for each in made.gpus} == {share}
