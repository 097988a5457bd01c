from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples.metrics_pages import PAGE
from trtllm_serve_cli.errors import RequestFailed
from trtllm_serve_cli.metrics.parse import Sample, Snapshot, parse_metrics

SNAPSHOT = parse_metrics(PAGE, 10.0)


def test_value_finds_samples_by_name_and_labels() -> None:
    waiting = SNAPSHOT.value("nv_trt_llm_request_metrics", request_type="waiting")
    assert (waiting, SNAPSHOT.value("nv_cpu_utilization")) == (3.0, 0.985)


def test_value_of_a_missing_sample_is_none() -> None:
    assert SNAPSHOT.value("nv_cpu_utilization", model="none") is None


def test_value_sums_several_samples() -> None:
    assert SNAPSHOT.value("nv_inference_request_failure", model="ensemble") == 3.0


def test_each_model_is_listed_once() -> None:
    assert SNAPSHOT.models("nv_inference_") == (("ensemble", "1"), ("tensorrt_llm", "1"))


@pytest.mark.parametrize(
    "page",
    [
        "# TYPE a counter\na 1\n",
        "# TYPE a_total counter\na_total 1\n",
        "a 1\n",
    ],
)
def test_counters_have_one_name_with_or_without_total(page: str) -> None:
    snapshot = parse_metrics(page, 0.0)
    assert (snapshot.value("a"), snapshot.value("a_total")) == (1.0, 1.0)


def test_values_that_are_not_finite_are_dropped() -> None:
    page = "a NaN\nb +Inf\nc 1\n"
    assert parse_metrics(page, 1.0) == Snapshot(1.0, (Sample("c", {}, 1.0),))


def test_empty_page_has_no_samples() -> None:
    assert parse_metrics("", 1.0).samples == ()


@pytest.mark.parametrize(
    "page", ["nv_cpu_util", "<html>\n", 'a{b="c\n', "a{b=c} 1\n", "a one\n"], ids=repr
)
def test_rejects_an_invalid_page(page: str) -> None:
    with pytest.raises(RequestFailed, match="metrics page is not valid") as raised:
        parse_metrics(page, 1.0)
    assert raised.value.next_step


@given(st.integers(0, len(PAGE)), st.integers(0, len(PAGE)))
def test_any_part_of_a_page_is_parsed_or_rejected(start: int, end: int) -> None:
    try:
        parse_metrics(PAGE[start:end], 1.0)
    except RequestFailed as error:
        assert error.why


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        parse_metrics(text + "\n", 1.0)
    except RequestFailed as error:
        assert error.why
