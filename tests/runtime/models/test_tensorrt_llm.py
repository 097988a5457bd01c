"""Requests to the model inside Triton, on a real worker with the scripted engine."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import scripted_worker, triton_utils
from tests.fakes.scripted_worker import COUNT, COUNT_CANCELLED, DIE, FAIL, HANG, REJECT
from tests.fakes.triton_utils import Request, TruncatedTensor
from tests.waiting import wait_until
from trtllm_serve_cli.runtime.triton.tensors import INTERNAL_ID_PREFIX
from trtllm_serve_cli.runtime.worker.stop_forwarding import StopForwarder, caller_socket_name
from trtllm_serve_cli.runtime.worker.worker_pool import WorkerPool


@contextmanager
def loaded(
    folder: Path,
    *,
    name: str = "tensorrt_llm",
    decoupled: bool = True,
    max_queue_size: int = 0,
    num_instances: int = 1,
    instance: int = 0,
    priority_levels: int = 0,
    **parameters: str,
) -> Iterator[Any]:
    """Load the model with an `engine_python` that always runs the scripted worker."""
    python = folder / "python3"
    python.write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} {scripted_worker.__file__} "$@"\n'
    )
    python.chmod(0o755)
    batching = {
        "default_queue_policy": {"max_queue_size": max_queue_size},
        "priority_levels": priority_levels,
    }
    args = {
        "model_config": _config(
            decoupled, batching, num_instances, **{"engine_python": str(python), **parameters}
        ),
        "model_instance_name": f"tensorrt_llm_0_{instance}",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", triton_utils)
        from trtllm_serve_cli.runtime.models.tensorrt_llm import TritonPythonModel

        model = TritonPythonModel()
        model.initialize({**args, "model_name": name, "model_version": "1"})
        try:
            yield model
        finally:
            model.finalize()


def _config(
    decoupled: bool, batching: dict[str, Any], num_instances: int, **parameters: str
) -> str:
    sizes = (
        "max_beam_width", "max_num_seqs", "max_num_tokens", "max_seq_len",
        "max_tokens_in_paged_kv_cache", "vocab_size",
    )  # fmt: skip
    values = {
        **dict.fromkeys(sizes, "64"),
        "cancellation_check_period_ms": "1",
        "engine_kind": "openvino",
        "gpt_model_path": "/no/engine",
        **parameters,
    }
    return json.dumps(
        {
            "input": [{"name": "input_ids"}, {"name": "embedding_bias"}],
            "instance_group": [{"count": num_instances}],
            "model_transaction_policy": {"decoupled": decoupled},
            "dynamic_batching": batching,
            "parameters": {name: {"string_value": value} for name, value in values.items()},
        }
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with loaded(tmp_path_factory.mktemp("python")) as started:
        yield started


def _request(*commands: int, request_id: str = "", **tensors: Any) -> Request:
    """Return a request with one row of two tokens per command."""
    rows = [[each] for each in commands]
    inputs = {"input_ids": rows, "input_lengths": [[1]] * len(rows), **tensors}
    return Request({"request_output_len": [[2]] * len(rows), **inputs}, request_id)


def _generate(model: Any, *commands: int, **tensors: Any) -> list[Any]:
    request = _request(*commands, **tensors)
    model.execute([request])
    return request.sender.responses()


def _num_cancelled(model: Any) -> int:
    (answer,) = _generate(model, COUNT_CANCELLED, exclude_input_in_output=[[True]])
    return int(answer["output_ids"][0][0][0])


def _sequence(tokens: list[int], row: int = 0, sequence: int = 0) -> dict[str, Any]:
    return {
        "output_ids": [[tokens]],
        "sequence_length": [[len(tokens)]],
        "batch_index": [[row]],
        "sequence_index": [[sequence]],
    }


def test_response_is_the_prompt_and_the_generated_tokens(model: Any) -> None:
    assert _generate(model, COUNT) == [_sequence([COUNT, 10, 11])]


def test_returns_only_the_requested_outputs(model: Any) -> None:
    tensors = {"input_ids": [[COUNT]], "input_lengths": [[1]], "request_output_len": [[2]]}
    request = Request(tensors, requested_outputs=["sequence_length"])
    model.execute([request])
    assert request.sender.responses() == [{"sequence_length": [[3]]}]


def test_excludes_the_prompt(model: Any) -> None:
    assert _generate(model, COUNT, exclude_input_in_output=[[True]]) == [_sequence([10, 11])]


def test_stream_contains_new_tokens_and_never_the_prompt(model: Any) -> None:
    answers = _generate(model, COUNT, streaming=[[True]], request_output_len=[[50]])
    tokens = [answer["output_ids"][0][0] for answer in answers]
    assert answers == [_sequence(each) for each in tokens]
    assert [token for each in tokens for token in each] == [*range(10, 60)]


def test_each_row_and_sequence_has_its_own_response(model: Any) -> None:
    answers = _generate(
        model, COUNT, COUNT,
        request_output_len=[[1], [2]],
        num_return_sequences=[[2], [1]],
        exclude_input_in_output=[[True]] * 2,
    )  # fmt: skip
    assert sorted(answers, key=lambda each: (each["batch_index"], each["sequence_index"])) == [
        _sequence([10], row=0, sequence=0),
        _sequence([20], row=0, sequence=1),
        _sequence([10, 11], row=1),
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_beams_come_together_even_when_streaming(model: Any, streaming: bool) -> None:
    answers = _generate(
        model, COUNT,
        beam_width=[[2]],
        exclude_input_in_output=[[True]],
        streaming=[[streaming]],
    )  # fmt: skip
    assert answers == [
        {**_sequence([]), "output_ids": [[[10, 11], [20, 21]]], "sequence_length": [[2, 2]]}
    ]


def test_log_probs_are_aligned_with_the_new_tokens(model: Any) -> None:
    (answer,) = _generate(model, COUNT, return_log_probs=[[True]])
    assert answer == {
        **_sequence([COUNT, 10, 11]),
        "output_log_probs": [[[0.0, -0.5, -0.5]]],
        "cum_log_probs": [[-1.0]],
    }


def test_returns_token_counts_on_request(model: Any) -> None:
    (answer,) = _generate(
        model, COUNT, return_num_input_tokens=[[True]], return_num_output_tokens=[[True]]
    )
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == ([[1]], [[2]])


def test_failed_row_ends_the_request_and_frees_the_others(model: Any) -> None:
    before = _num_cancelled(model)
    assert _generate(model, HANG, FAIL, HANG) == ["the script fails it"]
    assert _num_cancelled(model) == before + 2


def test_text_model_receives_an_empty_first_response(model: Any) -> None:
    waiting = _request(HANG, request_id=f"{INTERNAL_ID_PREFIX}1")
    model.execute([waiting])
    taken = waiting.sender.next()
    model.execute([_request(HANG, request_id=f"{INTERNAL_ID_PREFIX}1", stop=[[True]])])
    assert (taken.content(), waiting.sender.responses()) == ({}, [_sequence([HANG])])


def test_text_model_receives_a_failure_as_tokens(model: Any) -> None:
    _, answer = _generate(model, FAIL, request_id=f"{INTERNAL_ID_PREFIX}1")
    why = list(b"the script fails it")
    assert (answer["sequence_index"], answer["output_ids"]) == ([[-1]], [[why]])


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize(
    ("command", "max_tokens"), [(COUNT, 0), (REJECT, 2)], ids=["by the model", "by the engine"]
)
def test_text_model_receives_a_rejection(
    tmp_path: Path, command: int, max_tokens: int, decoupled: bool
) -> None:
    fields = {"request_id": f"{INTERNAL_ID_PREFIX}1", "request_output_len": [[max_tokens]]}
    with loaded(tmp_path, decoupled=decoupled) as model:
        *_, answer = _generate(model, command, **fields)
    assert answer["sequence_index"] == [[-2]]


def test_text_model_receives_only_the_requested_outputs(model: Any) -> None:
    tensors = {"input_ids": [[COUNT]], "input_lengths": [[1]], "request_output_len": [[0]]}
    request = Request(tensors, f"{INTERNAL_ID_PREFIX}1", requested_outputs=["sequence_index"])
    model.execute([request])
    assert request.sender.responses() == [{"sequence_index": [[-2]]}]


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (
            {"request_output_len": [[0]]},
            "request_output_len (max_tokens) is 0; request at least 1 token",
        ),
        (
            {"input_lengths": [[2]]},
            "input_lengths is 2; send a length from 0 to 1, the number of tokens in input_ids",
        ),
        (
            {"embedding_bias": [[3.0]]},
            "embedding_bias (embedding bias) is not supported by the openvino engine kind, "
            "because OpenVINO GenAI does not support a logit bias. Omit embedding_bias, or "
            "serve this model with the pytorch or sim or tensorrt or vllm engine kind.",
        ),
    ],
)
def test_rejects_a_request_that_cannot_run(model: Any, tensors: Any, why: str) -> None:
    assert _generate(model, COUNT, **tensors) == [why]


def test_rejects_an_excessive_number_before_allocating_for_it(model: Any) -> None:
    """Memory for that many sequences would exhaust the machine."""
    (why,) = _generate(model, COUNT, num_return_sequences=[[2**31 - 1]])
    assert why.startswith("num_return_sequences is ")


def test_invalid_request_does_not_affect_its_batch(model: Any) -> None:
    requests = [_request(COUNT, embedding_bias=[[3.0]]), _request(COUNT)]
    model.execute(requests)
    assert [type(answer) for each in requests for answer in each.sender.responses()] == [str, dict]


def test_malformed_tensor_does_not_affect_its_batch(model: Any) -> None:
    requests = [_request(COUNT), _request(COUNT)]
    requests[0].tensors["lora_name"] = TruncatedTensor("lora_name")
    model.execute(requests)
    (why,), (response,) = (each.sender.responses() for each in requests)
    assert why.startswith("lora_name is malformed: ") and isinstance(response, dict)


def test_stop_ends_the_request_with_the_id_and_frees_its_slots(model: Any) -> None:
    before = _num_cancelled(model)
    hanging = _request(HANG, HANG, request_id="a")
    stop = _request(0, request_id="a", stop=[[True]])
    model.execute([hanging, stop])
    results = (hanging.sender.responses(), stop.sender.responses(), _num_cancelled(model) - before)
    assert results == ([_sequence([HANG]), _sequence([HANG], row=1)], [{}], 2)


@pytest.mark.parametrize("request_id", ["b", ""])
def test_rejects_a_stop_for_an_id_that_is_not_running(model: Any, request_id: str) -> None:
    stop = _request(0, request_id=request_id, stop=[[True]])
    model.execute([stop])
    assert stop.sender.responses() == [
        f"no running request has the id {request_id!r}; send a stop request with the id of a "
        "running request"
    ]


def test_id_of_a_finished_request_is_released(model: Any) -> None:
    finished, stop = (
        _request(COUNT, request_id="c"),
        _request(0, request_id="c", stop=[[True]]),
    )
    model.execute([finished])
    finished.sender.responses()
    model.execute([stop])
    assert "no running request" in stop.sender.responses()[0]


def test_stop_ends_the_requests_of_the_models_that_call_this_model(tmp_path: Path) -> None:
    stopped: list[tuple[int, str]] = []

    def stop(caller: int) -> Callable[[str], bool]:
        return lambda request_id: request_id == "t" and stopped.append((caller, "t")) is None

    with loaded(tmp_path) as model:
        callers = [StopForwarder(caller_socket_name("tensorrt_llm"), stop(each)) for each in (1, 2)]
        requests = [
            _request(0, request_id="t", stop=[[True]]),
            _request(HANG, request_id="t"),
            _request(0, request_id="t", stop=[[True]]),
            _request(0, request_id="unknown", stop=[[True]]),
            _request(0, stop=[[True]]),
        ]
        model.execute(requests)
        callers_only, running, everywhere, *unknown = [each.sender.responses() for each in requests]
    for each in callers:
        each.close()
    assert (callers_only, running, everywhere) == ([{}], [_sequence([HANG])], [{}])
    assert sorted(stopped) == [(1, "t")] * 2 + [(2, "t")] * 2
    assert all("no running request" in why for (why,) in unknown)


def test_stop_reaches_the_instance_that_runs_the_request(tmp_path: Path) -> None:
    with loaded(tmp_path, num_instances=2) as other, loaded(tmp_path, num_instances=2) as running:
        hanging, stop = _request(HANG, request_id="g"), _request(0, request_id="g", stop=[[True]])
        running.execute([hanging])
        other.execute([stop])
        assert (stop.sender.responses(), _num_cancelled(running)) == ([{}], 1)
        unknown = _request(0, request_id="g", stop=[[True]])
        other.execute([unknown])
        assert "no running request" in unknown.sender.responses()[0]


def test_instances_that_share_an_engine_use_the_worker_of_the_first(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"num_instances": 2, "instances_share_engine": "true"}
    # A separate name, since the model of the other tests accepts clients, too.
    shared["name"] = "shared"
    with loaded(tmp_path, **shared) as first, loaded(tmp_path, instance=1, **shared) as second:
        assert _generate(second, COUNT) == _generate(first, COUNT)
        running, stop = _request(HANG, request_id="s"), _request(0, request_id="s", stop=[[True]])
        second.execute([running])
        first.execute([stop])
        assert stop.sender.responses() == [{}]
        # The cancellation and the query reach the worker over different sockets, in any order.
        wait_until(lambda: _num_cancelled(first) == 1)
        assert _num_cancelled(second) == 1


def test_instances_with_their_own_engines_have_sockets_that_text_models_find(
    tmp_path: Path,
) -> None:
    own: dict[str, Any] = {"num_instances": 2, "name": "own"}
    with loaded(tmp_path, **own) as first, loaded(tmp_path, instance=1, **own) as second:
        pool = WorkerPool("own")
        pool.wait_for_reconnection(60)
        fields = {"input_ids": (HANG,), "max_new_tokens": 2}

        def have_both_cancelled() -> bool:
            for each in [pool.submit(fields, lambda update: None) for _ in range(2)]:
                pool.cancel(each)
            return min(_num_cancelled(first), _num_cancelled(second)) > 0

        wait_until(have_both_cancelled)
        pool.close()


def test_instances_that_share_an_engine_cannot_have_queue_policies(tmp_path: Path) -> None:
    with (
        pytest.raises(triton_utils.TritonModelException) as raised,
        loaded(tmp_path, num_instances=2, instances_share_engine="true", priority_levels=2),
    ):
        pass
    assert str(raised.value) == (
        "queue priorities and timeouts require a single instance, but 2 instances share the "
        "engine; set tensorrt_llm_instance_count=1"
    )


def test_stop_returns_the_tokens_generated_so_far_without_streaming(model: Any) -> None:
    request = _request(
        COUNT, request_id="d", request_output_len=[[4000]], num_return_sequences=[[2]]
    )
    model.execute([request, _request(0, request_id="d", stop=[[True]])])
    results = request.sender.responses()
    assert [each["sequence_index"] for each in results] == [[[0]], [[1]]]
    assert all(each["sequence_length"][0][0] < 4001 for each in results)


def test_stop_ends_all_requests_that_share_the_id(model: Any) -> None:
    requests = [_request(HANG, request_id="e"), _request(HANG, request_id="e")]
    model.execute([*requests, _request(0, request_id="e", stop=[[True]])])
    assert [each.sender.responses() for each in requests] == [[_sequence([HANG])]] * 2


def test_model_that_is_not_decoupled_merges_all_rows(tmp_path: Path) -> None:
    with loaded(tmp_path, decoupled=False) as model:
        (answer,) = _generate(
            model, COUNT, COUNT,
            request_output_len=[[1], [2]],
            return_num_output_tokens=[[True]] * 2,
            exclude_input_in_output=[[True]] * 2,
        )  # fmt: skip
    assert answer == {
        "output_ids": [[[10, 0]], [[10, 11]]],
        "sequence_length": [[1], [2]],
        "batch_index": [[0], [1]],
        "sequence_index": [[0], [0]],
        "num_output_tokens": [[1], [2]],
    }


def test_model_that_is_not_decoupled_rejects_streaming(tmp_path: Path) -> None:
    with loaded(tmp_path, decoupled=False) as model:
        (why,) = _generate(model, COUNT, streaming=[[True]])
    assert why.startswith("streaming requires a decoupled model")


def test_rejects_requests_when_the_queue_is_full(tmp_path: Path) -> None:
    with loaded(tmp_path, max_queue_size=1, max_num_seqs="1") as model:
        waiting = [_request(HANG, request_id="f"), _request(HANG, request_id="f")]
        model.execute(waiting)
        rejected = _generate(model, COUNT)
        model.execute([_request(0, request_id="f", stop=[[True]])])
        answered = _generate(model, COUNT, exclude_input_in_output=[[True]])
    assert (rejected, answered) == (
        [
            "Exceeds maximum queue size. Maximum queue size of 1 has been reached, please try "
            "again later"
        ],
        [_sequence([10, 11])],
    )


def test_failure_to_build_a_response_ends_the_request(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtllm_serve_cli.runtime.requests import responses

    monkeypatch.setattr(responses, "pack_sequences", lambda *arguments: 1 / 0)
    assert _generate(model, COUNT) == [
        "the response could not be built: ZeroDivisionError: division by zero"
    ]


def test_disconnected_client_frees_the_slot(model: Any) -> None:
    before = _num_cancelled(model)
    request = _request(HANG)
    request.sender.client_has_disconnected = True
    model.execute([request])
    results = (request.sender.responses(), _num_cancelled(model) - before)
    assert results == ([_sequence([HANG])], 1)


def test_death_of_the_worker_fails_all_requests(tmp_path: Path) -> None:
    with loaded(tmp_path) as model:
        requests = [_request(HANG), _request(HANG, DIE)]
        model.execute(requests)
        results = [each.sender.responses() for each in requests]
    why = "the engine worker died (signal 9) and is being restarted; retry the request"
    assert results == [[why], [why]]


def test_model_fails_to_load_if_the_worker_does_not_start(tmp_path: Path) -> None:
    why = r"^the engine worker did not start: .*No such file or directory: '/no/python3'$"
    with (
        pytest.raises(triton_utils.TritonModelException, match=why),
        loaded(tmp_path, engine_python="/no/python3"),
    ):
        pass


def test_deletes_the_file_of_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    weights, config = np.zeros((1, 1, 4), np.float16), np.ones((1, 1, 3), np.int32)
    tensors = {"lora_task_id": [[3]], "lora_weights": weights, "lora_config": config}
    with loaded(tmp_path) as model:
        assert _generate(model, COUNT, **tensors) == _generate(model, COUNT)
        (folder,) = (tmp_path / "tmp").glob("tllm-lora-*")
        assert list(folder.iterdir()) == []


def test_rejects_an_adapter_without_its_id(model: Any) -> None:
    (why,) = _generate(model, COUNT, lora_config=np.ones((1, 1, 3), np.int32))
    assert why == "lora_weights and lora_config require lora_task_id; send one id per row"
