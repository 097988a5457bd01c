"""Test requests with LoRA adapters to a fake Triton, whose cache evicts adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.triton.lora_cache import LoraCache
from tests.fakes.triton.server import FakeTriton
from tests.gateway.generation.triton_sender import (
    Backend,
    ids_of,
    request,
    run,
    status_of,
    wait_until,
)
from tests.samples.lora_adapters import SITES, make_adapter, write_converted, write_peft
from trtllm_serve_cli.client.lora import load_adapter
from trtllm_serve_cli.gateway.errors import ApiError
from trtllm_serve_cli.runtime.engine import SequenceUpdate
from trtllm_serve_cli.runtime.lora.adapter import encode_adapter
from trtllm_serve_cli.runtime.lora.file_names import LORA_CONFIG, PEFT_WEIGHTS


def write(folder: Path, value: int) -> dict[str, Any]:
    """Write an adapter for which the fake generates the token `value`. Return its fields."""
    write_converted(folder, first=value)
    return {"lora_name": f"{folder.name}-{value}", "lora_file": str(folder)}


def send(triton: FakeTriton, *requests: dict[str, Any]) -> list[list[SequenceUpdate]]:
    """Send requests one after the other over one backend. Return the updates of each."""
    updates = []

    async def test(backend: Backend) -> None:
        for fields in requests:
            backend.updates.clear()
            backend.send(**fields)
            await wait_until(lambda: backend.num_ended)
            updates.append(list(backend.updates))

    run(triton.endpoint, test)
    return updates


def tokens_of(responses: list[list[SequenceUpdate]]) -> list[list[int]]:
    assert not [each.error for updates in responses for each in updates if each.error]
    return [ids_of(updates) for updates in responses]


def test_weights_are_sent_with_the_first_request_only(tmp_path: Path) -> None:
    poet = write(tmp_path / "poet", 7)
    with FakeTriton(answer=(cache := LoraCache())) as triton:
        assert tokens_of(send(triton, poet, poet, {})) == [[7] * 3, [7] * 3, [0] * 3]
    weights, config = load_adapter(tmp_path / "poet")
    first, second, plain = triton.received
    assert first["lora_weights"] == ("FP16", [1, 2, 4], weights.content)
    assert first["lora_config"] == ("INT32", [1, 2, 3], config.content)
    assert first["lora_task_id"] == second["lora_task_id"] == cache.sent[0]
    assert "lora_weights" not in second
    assert "lora_task_id" not in plain


def test_evicted_adapters_are_sent_again(tmp_path: Path) -> None:
    poet, pirate = write(tmp_path / "poet", 7), write(tmp_path / "pirate", 8)
    with FakeTriton(answer=(cache := LoraCache(capacity=1))) as triton:
        assert tokens_of(send(triton, poet, pirate, poet, poet)) == [
            [7] * 3, [8] * 3, [7] * 3, [7] * 3,
        ]  # fmt: skip
    # Only the third request was sent twice: without and with the weights.
    assert (len(cache.sent), len(triton.requests)) == (3, 5)


def test_adapter_is_sent_again_after_a_restart(tmp_path: Path) -> None:
    poet = write(tmp_path / "poet", 7)
    cache = LoraCache()
    with FakeTriton(answer=cache) as triton:

        async def test(backend: Backend) -> None:
            for _ in range(2):
                backend.updates.clear()
                backend.send(**poet)
                await wait_until(lambda: backend.num_ended)
                assert ids_of(backend.updates) == [7] * 3
                cache.tasks.clear()

        run(triton.endpoint, test)
    assert len(cache.sent) == 2


def test_only_one_of_many_requests_sends_the_weights(tmp_path: Path) -> None:
    poet = write(tmp_path / "poet", 7)
    cache = LoraCache()
    with FakeTriton(answer=cache) as triton:

        async def test(backend: Backend) -> None:
            for num_sent in (1, 2):
                backend.updates.clear()
                for _ in range(20):
                    backend.send(**poet)
                await wait_until(lambda: backend.num_ended == 20)
                assert ids_of(backend.updates) == [7] * 60
                assert len(cache.sent) == num_sent
                cache.tasks.clear()

        run(triton.endpoint, test)


def test_cancelled_request_does_not_block_others(tmp_path: Path) -> None:
    """The request that sends the weights is cancelled before the server has responded."""
    poet = write(tmp_path / "poet", 7)
    with FakeTriton(answer=LoraCache(), sticks_at=1) as triton:

        async def test(backend: Backend) -> None:
            first = backend.send(**poet)
            backend.send(**poet)
            await wait_until(lambda: triton.requests)
            backend.cancel(first)
            triton.hold.set()
            await wait_until(lambda: backend.num_ended)

        assert ids_of(run(triton.endpoint, test)) == [7] * 3


def test_prefetched_adapter_is_sent_only_if_it_was_evicted(tmp_path: Path) -> None:
    fields = {"lora_task_id": 5, "lora_file": write(tmp_path / "5", 9)["lora_file"]}
    with FakeTriton(answer=(cache := LoraCache())) as triton:
        cache.tasks[5] = 9
        assert tokens_of(send(triton, fields)) == [[9] * 3]
        assert cache.sent == []
        cache.tasks.clear()
        assert tokens_of(send(triton, fields)) == [[9] * 3]
    assert cache.sent == [5]


def test_adapter_of_the_server_is_selected_by_name() -> None:
    with FakeTriton() as triton:
        request(triton, lora_name="poet")
    (sent,) = triton.requests
    assert sent.parameters == {"lora_name": "poet"}
    assert "lora_task_id" not in sent.inputs


def test_same_weights_have_the_same_task_id(tmp_path: Path) -> None:
    """Several gateways share an entry of the cache, and different adapters never do."""
    files = [write(tmp_path / name, value) for name, value in (("a", 7), ("b", 7), ("c", 8))]
    with FakeTriton(answer=(cache := LoraCache())) as triton:
        send(triton, *files)
    first, second, third = cache.sent
    assert first == second != third
    assert 0 < third < 1 << 63


def test_adapters_in_pefts_format_are_converted(tmp_path: Path) -> None:
    adapter = make_adapter(SITES, ["q_proj"])
    folder = write_peft(tmp_path / "poet", adapter)
    with FakeTriton(answer=LoraCache()) as triton:
        tokens_of(send(triton, {"lora_name": "poet", "lora_file": str(folder)}))
    weights, config = encode_adapter(adapter)
    assert triton.received[0]["lora_weights"][1:] == ([1, *weights.shape], weights.tobytes())
    assert triton.received[0]["lora_config"][1:] == ([1, *config.shape], config.tobytes())


def test_weights_have_the_type_of_the_input(tmp_path: Path) -> None:
    poet = write(tmp_path / "poet", 7)
    with FakeTriton(answer=LoraCache(datatype="BF16")) as triton:
        (updates,) = send(triton, poet)
        assert status_of(updates[-1]) == 400
        assert "same data type" in (updates[-1].error or "")
        triton.types["lora_weights"] = "TYPE_BF16"
        assert tokens_of(send(triton, poet)) == [[7] * 3]


def test_unreadable_adapter_is_an_error_of_its_requests_only(tmp_path: Path) -> None:
    poet = write(tmp_path / "poet", 7)
    (tmp_path / "poet" / LORA_CONFIG).unlink()
    with FakeTriton(answer=LoraCache()) as triton:
        failed, plain, again = send(triton, poet, {}, poet)
    assert (status_of(failed[-1]), ids_of(plain)) == (400, [0] * 3)
    assert f"{LORA_CONFIG} cannot be read (No such file or directory)" in (again[-1].error or "")


def test_adapter_whose_weights_are_a_folder_is_an_error(tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "poet", make_adapter(SITES))
    (folder / PEFT_WEIGHTS).unlink()
    (folder / PEFT_WEIGHTS).mkdir()
    with FakeTriton(answer=LoraCache()) as triton:
        (updates,) = send(triton, {"lora_name": "poet", "lora_file": str(folder)})
    assert updates[-1].error == (
        "the adapter files cannot be read (Is a directory); ask the operator to check the files on "
        "the gateway's machine"
    )


def test_changed_adapter_is_not_sent(tmp_path: Path) -> None:
    """Otherwise, requests would use the old or the new weights, depending on the cache."""
    poet = write(tmp_path / "poet", 7)
    cache = LoraCache()
    with FakeTriton(answer=cache) as triton:

        async def test(backend: Backend) -> None:
            backend.send(**poet)
            await wait_until(lambda: backend.num_ended)
            write(tmp_path / "poet", 8)
            cache.tasks.clear()
            backend.send(**poet)
            await wait_until(lambda: backend.num_ended == 2)

        updates = run(triton.endpoint, test)
    assert "have changed since the adapter was first used" in (updates[-1].error or "")
    assert len(cache.sent) == 1


def test_every_request_succeeds_if_the_cache_keeps_nothing(tmp_path: Path) -> None:
    poet = write(tmp_path / "poet", 7)
    with FakeTriton(answer=LoraCache(capacity=0)) as triton:

        async def test(backend: Backend) -> None:
            for _ in range(20):
                backend.send(**poet)
            await wait_until(lambda: backend.num_ended == 20)

        assert ids_of(run(triton.endpoint, test)) == [7] * 60


def test_model_without_the_inputs_rejects_adapters(tmp_path: Path) -> None:
    inputs = ("input_ids", "input_lengths", "request_output_len", "lora_task_id")

    async def test(backend: Backend) -> None:
        assert not backend.accepts_adapters
        with pytest.raises(ApiError, match="does not have the inputs for LoRA adapters") as raised:
            backend.send(**write(tmp_path / "poet", 7))
        assert (raised.value.status, raised.value.code) == (400, "unsupported_parameter")

    with FakeTriton(input_names=inputs) as triton:
        run(triton.endpoint, test)
